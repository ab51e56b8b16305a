"""The real simulator behind the environment protocol: texts, rewards, bad input, broken JVMs."""

import contextlib
import os
import signal
import time
from dataclasses import replace

import psutil
import pytest
from envs.endings import ending
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coevolve.envs.base import FORMAT_ERROR, OVER, EnvError
from coevolve.envs.sciworld.env import ACTION_LENGTH, SciWorld, first_line
from coevolve.envs.sciworld.installation import MEMORY_MB, READ_TIMEOUT_S
from coevolve.envs.sciworld.jvm import HOME, Simulator, World
from coevolve.envs.sciworld.tasks import DATA, task_of
from coevolve.errors import UserError
from coevolve.records.episodes import Trajectory
from coevolve.storage import files, jsonl

ANIMAL = task_of("find-animal", 0, "train")
ANIMAL_START = next(t for t in jsonl.read(DATA / "gold.jsonl", Trajectory) if t.task == ANIMAL).prompt[-1].content
ANIMAL_ACTIONS = (
    "teleport to outside",
    "focus on butterfly egg",
    "pick up butterfly egg",
    "teleport to kitchen",
    "move butterfly egg to red box",
)


def rewards(env, task, actions):
    env.start(task)
    return [round(env.step(action).reward, 4) for action in actions]


def test_an_episode_from_start_to_success(env):
    assert env.start(ANIMAL) == ANIMAL_START
    results = [env.step(action) for action in ANIMAL_ACTIONS]
    assert [round(result.score, 4) for result in results] == [0.1667, 0.6667, 0.75, 0.8333, 1.0]
    assert [result.done for result in results] == [False] * 4 + [True]
    assert (results[-1].observation, results[-1].reward) == ("You move the butterfly to the red box.", 1.0)


@pytest.mark.parametrize(("resets", "after"), [(True, 0.0), (False, 0.6667)])
def test_a_format_error_resets_the_reward_under_paper_only(simulator, resets, after):
    with contextlib.closing(SciWorld(simulator, "easy", format_error_resets=resets)) as env:
        actions = [*ANIMAL_ACTIONS[:2], None, None, "inventory", ANIMAL_ACTIONS[2]]
        assert rewards(env, ANIMAL, actions) == [0.1667, 0.6667, after, after, 0.6667, 0.75]
        answer = env.step(None)
        assert (answer.observation, round(answer.score, 4), answer.done) == (FORMAT_ERROR, 0.75, False)


@pytest.mark.parametrize(
    ("score", "completed", "reward"),
    [(0.996, True, 1.0), (0.995, True, 1.0), (0.994, True, 0.994), (0.996, False, 0.996), (1.0, True, 1.0)],
)
def test_rounded_shares_that_nearly_add_up_are_a_full_reward_at_the_end_only(
    simulator, monkeypatch, score, completed, reward
):
    env, step = SciWorld(simulator, "easy"), simulator.step
    env.start(ANIMAL)

    def rounded(world, action):
        return replace(step(world, action), score=score, completed=completed)

    monkeypatch.setattr(simulator, "step", rounded)
    result = env.step(ANIMAL_ACTIONS[0])
    assert (result.reward, result.score, result.done) == (reward, score, completed)
    env.close()


def test_a_wrong_focus_ends_the_episode_for_good_and_keeps_the_maximum(env):
    env.start(ANIMAL)
    before = env.step("teleport to outside")
    failed = env.step("focus on axe")
    assert (failed.score, failed.done, failed.reward) == (-1.0, True, before.reward)
    for action in ("reset task", None, "teleport to outside"):
        after = env.step(action)
        assert (after.observation, after.reward, after.score, after.done) == (OVER, before.reward, -1.0, True)


def test_any_text_is_answered(env):
    @given(st.text(max_size=400))
    @example("\ud800 look")
    @example("look around\nfocus on axe")
    @example("x" * 2_000_000)
    @example("\x00")
    @example("é\u2028")
    @settings(max_examples=40)
    def is_answered(action):
        answer = env.step(action)
        assert isinstance(answer.observation, str) and not answer.done
        assert len(first_line(action)) <= ACTION_LENGTH

    env.start(ANIMAL)
    is_answered()


def test_electrical_tasks_keep_their_electrical_actions(simulator):
    env = SciWorld(simulator, "teleportAction,openDoors,openContainers,selfWateringFlowerPots,noElectricalAction")
    env.start(task_of("power-component", 0, "train"))
    env.step("teleport to workshop")
    assert "is now connected to" in env.step("connect battery anode to black wire terminal 1").observation
    env.start(ANIMAL)
    assert env.step("connect battery anode to black wire terminal 1").observation.startswith("No known action")
    env.close()


def test_tasks_that_do_not_exist_are_the_users_error_and_leave_no_world_behind(simulator):
    env, before = SciWorld(simulator, "easy"), set(simulator._jvm.loaded)
    for kind, variation, words in (
        ("find-animal", -1, "variation"),
        ("find-animal", 100_000, "find-animal/100000"),
        ("find-unicorn", 0, "find-unicorn"),
    ):
        with pytest.raises(UserError, match=words):
            env.start(task_of(kind, variation, "train"))
        assert env.start(ANIMAL) == ANIMAL_START
    for wrong in ({"task": 1}, {"variation": "0"}, {"variation": None}):
        with pytest.raises(UserError, match=r"`data` must hold `task` \(a type\) and `variation`"):
            env.start(ANIMAL.model_copy(update={"data": ANIMAL.data | wrong}))
    for variation in (100_000, 100_001):
        with pytest.raises(UserError):
            env.start(task_of("find-animal", variation, "train"))
    assert simulator._jvm.loaded == before
    with pytest.raises(EnvError, match="call start"):
        env.step("look around")


def test_step_limits_are_etos_unless_configured_and_simplifications_known_ones(simulator):
    assert SciWorld(simulator, "easy").step_limit(ANIMAL) == 15
    assert SciWorld(simulator, "easy").step_limit(task_of("mendelian-genetics-known-plant", 0, "train")) == 100
    assert SciWorld(simulator, "easy", step_limit=7).step_limit(ANIMAL) == 7
    with pytest.raises(UserError, match="teleportActions"):
        SciWorld(simulator, "teleportActions,openDoors")


@pytest.fixture(scope="module")
def breakable():
    """A simulator for tests that end its JVM; the next of them goes on in the JVM that replaced it."""
    with contextlib.closing(Simulator(MEMORY_MB, READ_TIMEOUT_S)) as simulator:
        yield simulator


def test_a_killed_jvm_fails_every_world_in_it_and_start_brings_it_back(breakable):
    env, neighbour = SciWorld(breakable, "easy"), SciWorld(breakable, "easy")
    env.start(ANIMAL)
    neighbour.start(ANIMAL)
    killed = breakable.pid
    os.kill(killed, signal.SIGKILL)
    for broken in (env, neighbour):
        with pytest.raises(EnvError):
            broken.step("teleport to outside")
    assert env.start(ANIMAL) == ANIMAL_START
    with pytest.raises(EnvError):
        neighbour.step("teleport to outside")
    assert rewards(neighbour, ANIMAL, ANIMAL_ACTIONS)[-1] == 1.0
    assert breakable.pid != killed
    os.kill(breakable.pid, signal.SIGKILL)
    psutil.Process(breakable.pid).wait()
    assert env.start(ANIMAL) == ANIMAL_START  # between episodes it is not noticed


def test_a_hung_jvm_fails_within_the_time_limit_and_is_replaced(breakable):
    env = SciWorld(breakable, "easy")
    env.start(ANIMAL)
    hung = breakable.pid
    for connection in breakable._jvm._gateway._gateway_client.deque:
        assert connection.socket.gettimeout() == READ_TIMEOUT_S
        connection.socket.settimeout(0.5)  # the start of a JVM, which has the whole limit, may take longer
    os.kill(hung, signal.SIGSTOP)
    with pytest.raises(EnvError, match=r"the ScienceWorld JVM failed during .*: An error occurred"):
        env.step("look around")
    assert not psutil.pid_exists(hung)
    assert env.start(ANIMAL) == ANIMAL_START


def test_a_jvm_that_ends_while_another_thread_asks_for_it_holds_no_world(breakable):
    class Ending(World):
        """Ends the JVM when it is looked up for the second time, as a call of another thread may."""

        lookups = iter((lambda: None, breakable.close))

        def __hash__(self):
            next(self.lookups)()
            return 0

    breakable.new_world()
    world = Ending(interface=None, random=None)
    breakable._jvm.loaded.add(world)
    assert not breakable.holds(world)


def test_a_heap_too_small_is_an_environment_error(own_simulator):
    env = SciWorld(own_simulator(memory_mb=8), "easy")
    with pytest.raises(EnvError):
        env.start(ANIMAL)


def test_one_jvm_serves_all_environments_and_writes_nothing_where_it_runs(simulator):
    envs, before = [SciWorld(simulator, "easy") for _ in range(16)], files.sha256(HOME / "object_type_ids.tsv")
    envs[0].start(ANIMAL)
    children = psutil.Process().children()
    for env in envs[1:]:
        env.start(task_of("mendelian-genetics-known-plant", 0, "train"))
        env.step("look around")
    assert psutil.Process().children() == children
    assert psutil.Process(simulator.pid).memory_info().rss < 600e6
    assert files.sha256(HOME / "object_type_ids.tsv") == before
    for env in envs:
        env.close()


START = """
from coevolve.envs.sciworld.jvm import Simulator

started = Simulator(256, 60.0)
started.new_world()
"""


@pytest.mark.parametrize("how", ["exit", "close", "exception", "SIGTERM", "SIGKILL"])
def test_however_the_process_that_started_a_jvm_ends_the_jvm_ends_with_it(how):
    with ending(START, how) as (process, jvm):
        if how.startswith("SIG"):
            assert psutil.pid_exists(jvm)
            process.send_signal(getattr(signal, how))
        process.wait()
    while psutil.pid_exists(jvm):  # at last the test's time limit
        time.sleep(0.05)
