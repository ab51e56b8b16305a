"""Environments in worker processes: the same episodes as here, and what becomes of a process that is killed."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import psutil
import pytest
from rollout import keydoor, playing
from rollout.keydoor import gold, task, tasks
from rollout.playing import content

from coevolve import seeds
from coevolve.chat.prompts import write_action
from coevolve.config.loading import load_suite
from coevolve.config.suite import quirks
from coevolve.envs import registry
from coevolve.envs.base import EnvError, Setup
from coevolve.envs.workers import environments, pool
from coevolve.errors import UserError
from coevolve.pipeline.plan import Plan
from coevolve.policies.base import ScriptedPolicy
from coevolve.records.episodes import StopReason
from coevolve.rollout import THREADS

NUMBERS = re.compile(r"door(\d+)#")


def expert(conversation):
    """What opens the door."""
    script = gold(int(NUMBERS.match(conversation.key)[1]))
    return script[len(conversation.turns)] if len(conversation.turns) < len(script) else None


def play(path, envs, wanted, policy=expert, **settings):
    return playing.play(path, envs, wanted, ScriptedPolicy(policy), **settings)


@pytest.fixture
def trapdoors():
    """Two worlds in a process of their own each: neighbours share one, these are none."""
    with pool(keydoor.trapdoors, 3, 2) as (first, _, second):
        yield first, second


def place(env):
    """Process id of an environment, and whether torch is there."""
    env.start(task(0))
    pid, torch = env.step("look around").observation.split()
    return int(pid), torch


@pytest.mark.parametrize("processes", [1, 2, 9])
def test_key_door_episodes_are_the_same_in_processes(tmp_path, processes):
    wanted = [*tasks(9), task(3).model_copy(update={"task_id": "door11", "data": {"key": 3, "broken": 1}})]
    with pool(keydoor.pool, 5, processes) as envs:
        there = play(tmp_path / "there.jsonl", envs, wanted, retries=1, samples=2)
    here = play(tmp_path / "here.jsonl", [keydoor.KeyDoor() for _ in range(5)], wanted, retries=1, samples=2)
    assert content(there) == content(here)
    assert {trajectory.reward for trajectory in there} == {1.0}


#: By environment: other keys of its section, numbers of tasks (None: all) and of different rewards, numbers of
#: processes (each has a JVM of its own in ScienceWorld), and actions.
TOURS = {
    "webshop": (
        ({}, None, 4),
        (0, 1, 2),
        ("search[<r>]", "search[red cup]", "click[next >]", "click[description]", *["click[buy now]"] * 4),
    ),
    "sciworld": (
        ({"step_limit": 5}, 3, 1),
        (0, 2),
        ("look around", "teleport to kitchen", "open cupboard", "dig", "look at table"),
    ),
}


@pytest.mark.parametrize("kind", TOURS)
def test_episodes_of_an_environment_are_the_same_in_processes(root, tmp_path, kind):
    if kind == "sciworld":
        pytest.importorskip("scienceworld")
    (keys, count, rewards), numbers, actions = TOURS[kind]
    suite = load_suite(root / "configs/suites/smoke.yaml")
    domain = registry.domain(suite.envs[kind])

    def setup(processes):
        section = suite.envs[kind].model_copy(update=keys | {"processes": processes})
        return Setup(section, f"envs.{kind}", suite.protocol, quirks(suite), tmp_path)

    def tour(conversation):
        """Draws an action, or a click on a product that is seen."""
        seen = conversation.turns[-1].observation.lower() if conversation.turns else ""
        rng = seeds.generator(3, conversation.key, len(conversation.turns))
        chosen = rng.choice([*actions, *(f"click[{product}]" for product in re.findall(r"\bb0\w{8}\b", seen))])
        return write_action(str(chosen)) if rng.random() < 0.95 else "I wonder."

    if suite.envs[kind].prepared:
        domain.prepare(setup(0), tmp_path)
    wanted, found = domain.select(setup(0)).training[:count], []
    for processes in numbers:
        with environments(setup(processes), 8) as envs:
            assert len({getattr(env, "_process", None) for env in envs}) == max(processes, 1)
            episodes = play(tmp_path / f"{processes}.jsonl", envs, wanted, tour)
            found.append(content(episodes))
    assert all(episodes == found[0] for episodes in found)
    assert len({episode.reward for episode in episodes}) >= rewards


def test_errors_travel(trapdoors):
    env, other = trapdoors
    env.start(task(1).model_copy(update={"data": {"key": 0, "broken": 1}}))
    env.step("take key")
    with pytest.raises(EnvError, match="the corridor caved in"):
        env.step("go right")
    with pytest.raises(UserError, match="mind your words"):
        env.step("swear")
    with pytest.raises(RuntimeError, match=r"(?s)keydoor\.py.*1 // 0.*ZeroDivisionError"):
        env.step("divide")
    assert place(env)[0] != place(other)[0] != os.getpid()
    assert {place(one)[1] for one in trapdoors} == {"False"}  # no process imports torch


def test_what_cannot_be_opened_or_ends_in_the_middle_of_an_answer_says_why_here():
    before = psutil.Process().children()  # of other tests
    with pytest.raises(UserError, match="walled up"), pool(keydoor.walled_up, 2, 1):
        pass
    assert set(psutil.Process().children()) <= set(before)
    with pool(keydoor.half_said, 1, 1) as (env,), pytest.raises(EnvError, match="has ended"):
        env.start(task(0))


def test_a_killed_process_is_an_error_of_its_own_episodes_and_replaced(trapdoors):
    env, other = trapdoors
    killed, before = place(env)[0], place(other)[0]
    with pytest.raises(EnvError, match=f"process {killed}.* has ended"):
        env.step("jump")
    for act in (partial(env.step, "go right"), partial(env.parse, "Action: go"), partial(env.step_limit, task(0))):
        with pytest.raises(EnvError):
            act()
    assert place(other)[0] == before
    assert place(env)[0] not in (killed, before)
    assert env.step("take key").reward == 0.5


def test_episodes_outlive_processes_that_are_killed(tmp_path):
    def risky(conversation):
        """Falls once in every third task, in its first turn."""
        number = int(NUMBERS.match(conversation.key)[1])
        if number % 3 == 0 and number not in fallen and not conversation.turns:
            fallen.add(number)
            return write_action("jump")
        return expert(conversation)

    fallen = set()
    with pool(keydoor.trapdoors, 4, 2) as envs:
        survived = play(tmp_path / "killed.jsonl", envs, tasks(12), risky, retries=20)
    whole = play(tmp_path / "whole.jsonl", [keydoor.KeyDoor() for _ in range(4)], tasks(12))
    assert fallen == {0, 3, 6, 9}
    assert content(survived, but=["attempts"]) == content(whole, but=["attempts"])
    assert max(t.attempts for t in survived) > 1


def test_a_new_process_that_fails_to_open_is_replaced_by_the_next_start(tmp_path):
    with pool(partial(keydoor.collapsing, log=tmp_path / "log"), 2, 1) as (env, other):
        with pytest.raises(EnvError, match="has ended"):
            env.step("jump")
        for _ in range(2):
            with pytest.raises(EnvError, match="the corridor collapsed"):
                env.start(task(0))
        assert place(env)[0] == place(other)[0]
        assert env.step("take key").reward == 0.5
    assert (tmp_path / "log").read_text() == "opening\n" * 4


def test_a_step_that_does_not_end_costs_no_other_episode_an_attempt(tmp_path):
    """Four environments share a process, which one task hangs in each attempt; an episode that ends it is counted."""

    def script(conversation):
        return write_action("sleep") if conversation.key == "door0#0" and conversation.turns else expert(conversation)

    with pool(keydoor.trapdoors, 4, 1, step_seconds=1.0) as envs:
        hung, *others = play(tmp_path / "shared.jsonl", envs, tasks(8), script, retries=2)
        (ended,) = play(tmp_path / "ended.jsonl", envs[:1], tasks(1), lambda _: write_action("jump"), retries=1)
    found = [(episode.stop, episode.reward, episode.attempts) for episode in (hung, ended)]
    assert found == [(StopReason.ENV_ERROR, 0.0, 3), (StopReason.ENV_ERROR, 0.0, 2)]
    assert hung.error == "`step` took longer than `step_seconds: 1`; its process was killed"
    assert "has ended" in ended.error
    assert content(others) == content(play(tmp_path / "whole.jsonl", [keydoor.KeyDoor()], tasks(8)[1:]))
    assert {episode.attempts for episode in others} == {1}


PROGRAM = """
import sys, threading, time
from functools import partial
from rollout import keydoor
from coevolve.envs.workers import pool

ending, doing = sys.argv[1:]
def play():
    with pool(partial(keydoor.trapdoors, slow=3600.0 * (doing == "open")), 4, 2) as envs:
        for env in envs:
            env.start(keydoor.task(0))
        if doing == "sleep":
            threading.Thread(target=envs[0].step, args=("sleep",), daemon=True).start()
        if ending == "exception":
            raise RuntimeError("on purpose")
        if doing == "-":
            print("started", flush=True)
        if ending != "exit":
            time.sleep(3600)

if doing == "open":
    threading.Thread(target=play, daemon=True).start()
    time.sleep(3600)
play()
"""


@pytest.mark.parametrize(
    ("ending", "doing"),
    [("exit", "-"), ("exception", "-"), ("SIGTERM", "-"), ("SIGKILL", "-"), ("SIGKILL", "sleep"), ("SIGKILL", "open")],
)
def test_no_process_outlives_the_one_that_started_it(root, ending, doing):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")])}
    command = [sys.executable, "-c", PROGRAM, ending, doing]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        watched = psutil.Process(parent.pid)
        workers = []
        while len(workers) < 2:
            workers = watched.children()
            time.sleep(0.01)
        if ending.startswith("SIG"):
            assert parent.stdout.readline() == {"-": b"started\n", "sleep": b"asleep\n", "open": b"opening\n"}[doing]
            assert all(worker.is_running() for worker in workers)
            parent.send_signal(getattr(signal, ending))
    psutil.wait_procs(workers)  # at last the test's time limit


def test_many_episodes_at_once(tmp_path):
    """Many more than there are threads, in processes and here, where steps take a while: each as if it were alone."""
    most = 0

    def counting(conversation):
        nonlocal most
        most = max(most, threading.active_count())
        return expert(conversation)

    there, here = THREADS // 2, 3 * THREADS  # of these, every second one steps at a time
    wanted = tasks(there + here)
    with pool(keydoor.pool, there, 2) as remote:
        envs = [*remote, *(keydoor.KeyDoor(delay=0.02) for _ in range(here))]
        together = play(tmp_path / "together.jsonl", envs, wanted, counting)
    alone = play(tmp_path / "alone.jsonl", [keydoor.KeyDoor()], tasks(keydoor.ROOMS))
    assert [t.task for t in together] == wanted
    assert all(t.turns == alone[number % keydoor.ROOMS].turns for number, t in enumerate(together))
    assert {t.reward for t in together} == {1.0}
    assert most < THREADS + 20


def test_processes_rerun_nothing(root):
    plans = [Plan(load_suite(root / "configs/suites/smoke.yaml", [f"envs.webshop.processes={n}"])) for n in (0, 3)]
    assert len({tuple(plan.fingerprint(job) for job in plan.jobs()) for plan in plans}) == 1
    on = {"model": "tiny", "env": "webshop", "branch": "base/seed0", "agent": "target"}
    settings = [plan.settings(plan.require("rollout", on)) for plan in plans]
    assert [each.envs["webshop"].processes for each in settings] == [0, 3]


REPLACED = """
import time
from functools import partial
from pathlib import Path
from coevolve.envs import workers
from coevolve.envs.base import EnvError
from coevolve.errors import UserError
from coevolve.storage import code_digest
from rollout import keydoor

module = "coevolve.envs.webshop.domain"
opened = partial(workers._same_code, keydoor.pool, module, code_digest.code_digest(module))
with workers.pool(opened, 1, 1) as (env,):
    env.start(keydoor.task(1))
    with Path(code_digest.PACKAGE, "envs/webshop/reward.py").open("a") as file:
        file.write(EDIT)
    env._process._process.kill()
    while not env._process.ended:
        time.sleep(0.01)
    env.start(keydoor.task(1))
"""


@pytest.mark.parametrize(("edit", "status"), [("# a remark", 0), ("reward = reward", 1)])
def test_a_replaced_process_with_other_code_ends_the_job(root, tmp_path, edit, status):
    shutil.copytree(root / "coevolve", tmp_path / "coevolve")  # with the bytecode, which need not be made again
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{root / 'tests'}"}
    script = REPLACED.replace("EDIT", repr(f"\n{edit}\n"))
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    changed = "the code of coevolve.envs.webshop.domain changed while the job ran; run the same command again."
    assert (f"UserError: {changed}" in done.stderr) == bool(status)
