"""Many episodes at once in a small real environment."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from rollout import playing
from rollout.keydoor import KeyDoor, gold, recorded, task, tasks
from rollout.playing import content
from rollout.runs import SAMPLES, TASKS, run

from coevolve import seeds
from coevolve.chat.prompts import prompt_messages, write_action
from coevolve.envs.base import EnvError
from coevolve.envs.experts import play_expert
from coevolve.errors import UserError
from coevolve.policies.base import Completion, ScriptedPolicy
from coevolve.records.episodes import PolicyRef, Sampling, StopReason, Task, Trajectory
from coevolve.storage import jsonl

GREEDY = Sampling(temperature=0.0)


def play(policy, tasks_to_play, tmp_path, *, envs=3, environments=None, **settings):
    environments = environments or [KeyDoor() for _ in range(envs)]
    return playing.play(tmp_path / "episodes.jsonl", environments, tasks_to_play, policy, **settings)


def expert(count):
    return recorded({f"door{number}": gold(number) for number in range(count)})


@pytest.mark.parametrize("envs", [1, 3, 20])
def test_recorded_actions_reach_the_goal_in_task_order(tmp_path, envs):
    assert play(expert(7), [], tmp_path) == []
    trajectories = play(expert(7), tasks(7), tmp_path, envs=envs)
    assert [t.task for t in trajectories] == tasks(7)
    assert all((t.stop, t.reward, t.raw_score, t.attempts) == (StopReason.DONE, 1.0, 10.0, 1) for t in trajectories)
    assert [[turn.text for turn in t.turns] for t in trajectories] == [gold(number) for number in range(7)]
    assert [(turn.action, turn.observation, turn.score) for turn in trajectories[1].turns] == [
        ("go right", "You are in room 1. A key lies here.", 0.0),
        ("take key", "You have the key.", 5.0),
        ("go right", "You are in room 2.", 5.0),
        ("go right", "You are in room 3.", 5.0),
        ("open door", "The door is open.", 10.0),
    ]
    assert trajectories[0].prompt == prompt_messages(KeyDoor().start(task(0)))
    assert sorted(content(jsonl.read(tmp_path / "episodes.jsonl", Trajectory))) == sorted(content(trajectories))


class Falling(KeyDoor):
    """The reward falls to 0.25 when the agent walks on after it has taken the key."""

    def step(self, action):
        step = super().step(action)
        fell = step.reward == 0.5 and action == "go right"
        return replace(step, reward=0.25, score=2.5) if fell else step


def test_every_ending_has_its_name_and_the_reward_of_the_last_step(tmp_path):
    """Quirk 7 is the environment's: an episode has the reward that its environment gave last, also a lower one."""
    walk = ["Action: take key", *["Action: go right"] * 6]
    texts = {"door0": ["no action here"] * 7, "silent": ["Action: take key"] * 2, "fallen": walk}
    played = [task(0).model_copy(update={"task_id": name}) for name in texts]
    endings = play(recorded(texts), played, tmp_path, environments=[Falling()])
    assert [(t.stop, t.reward, t.raw_score, len(t.turns)) for t in endings] == [
        (StopReason.STEP_LIMIT, 0.0, 0.0, 7),
        (StopReason.CONTEXT, 0.5, 5.0, 2),
        (StopReason.STEP_LIMIT, 0.25, 2.5, 7),
    ]
    assert {turn.action for turn in endings[0].turns} == {None}
    assert [turn.score for turn in endings[2].turns] == [5.0] + [2.5] * 6


def broken(number, times):
    return task(number).model_copy(update={"data": {"key": number, "broken": times}})


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_a_broken_environment_is_tried_again_and_then_counted(tmp_path, retries):
    trajectories = play(expert(3), [task(0), broken(1, 2), task(2)], tmp_path, envs=1, retries=retries)
    assert [t.reward for t in trajectories] == [1.0, 1.0 if retries == 2 else 0.0, 1.0]
    failed = trajectories[1]
    assert failed.attempts == retries + 1
    assert failed.error == ("" if retries == 2 else "the corridor caved in")
    assert failed.stop is (StopReason.DONE if retries == 2 else StopReason.ENV_ERROR)
    assert len(failed.turns) == (5 if retries == 2 else 2)


def test_half_a_character_in_an_error_or_an_action_is_recorded(tmp_path):
    """Such as a part of a page, cut inside of a character: no file can hold it."""

    class Garbled(KeyDoor):
        def step(self, action):
            raise EnvError("unexpected page: \ud83d")

    halves = ScriptedPolicy(lambda conversation: "look \ud83d")
    (failed,) = play(halves, tasks(1), tmp_path, environments=[Garbled()])
    assert (failed.stop, failed.error) == (StopReason.ENV_ERROR, "unexpected page: \N{REPLACEMENT CHARACTER}")
    _, odd = play(halves, tasks(2), tmp_path)
    assert {turn.text for turn in odd.turns} == {"look \N{REPLACEMENT CHARACTER}"}
    assert jsonl.read(tmp_path / "episodes.jsonl", Trajectory) == [failed, odd]


def test_any_other_error_stops_the_run_and_keeps_what_was_finished(tmp_path):
    class Crashing(KeyDoor):
        def step(self, action):
            if self._key == 3:
                raise IndexError("a bug")
            return super().step(action)

    with pytest.raises(IndexError, match="a bug"):
        play(expert(4), tasks(4), tmp_path, environments=[Crashing()])
    assert [t.task.task_id for t in jsonl.read(tmp_path / "episodes.jsonl", Trajectory)] == ["door0", "door1", "door2"]
    with pytest.raises(RuntimeError, match="4 episodes were to be played, 0 came back"):
        play(expert(4), tasks(4), tmp_path / "none", envs=0)


def test_a_task_listed_twice_is_played_twice_as_often(tmp_path):
    trajectories = play(expert(2), [task(0), task(1), task(0)], tmp_path, samples=2)
    assert [(t.task.task_id, t.sample) for t in trajectories] == [
        ("door0", 0), ("door0", 1), ("door1", 0), ("door1", 1), ("door0", 2), ("door0", 3),
    ]  # fmt: skip


def test_what_the_journal_holds_is_not_played_again(tmp_path):
    first = play(expert(6), tasks(4), tmp_path)
    environments = [KeyDoor(), KeyDoor()]
    both = play(expert(6), tasks(6), tmp_path, environments=environments)
    assert both[:4] == first
    assert sorted(name for environment in environments for name in environment.started) == ["door4", "door5"]
    assert len(jsonl.read(tmp_path / "episodes.jsonl", Trajectory)) == 6


def test_the_policy_hears_which_episodes_are_over(tmp_path):
    class Listening:
        ref = PolicyRef(name="listening", sha256="0")
        forgotten: list[str] = []  # noqa: RUF012

        def complete(self, conversations, sampling):
            assert not {c.key for c in conversations} & set(self.forgotten)
            for each in conversations:  # on which what was sampled before depends
                task_id, _, sample = each.key.partition("#")
                assert each.seed == seeds.derive(1, "target", task_id, int(sample))
            return [Completion(text="Action: go right") for _ in conversations]

        def forget(self, key):
            self.forgotten.append(key)

    play(Listening(), tasks(5), tmp_path, samples=2)
    assert sorted(Listening.forgotten) == sorted(f"door{number}#{sample}" for number in range(5) for sample in range(2))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return run(tmp_path_factory.mktemp("run") / "episodes.jsonl")


def test_concurrency_changes_nothing(uninterrupted, tmp_path):
    assert content(run(tmp_path / "one.jsonl", envs=1)) == content(uninterrupted)
    assert content(run(tmp_path / "eight.jsonl", envs=8)) == content(uninterrupted)


def test_a_rollout_that_is_killed_and_run_again_ends_in_the_same_bytes(uninterrupted, root, tmp_path):
    def lines():
        return path.read_bytes().count(b"\n") if path.exists() else 0

    path = tmp_path / "episodes.jsonl"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")])}
    process = subprocess.Popen([sys.executable, root / "tests/rollout/runs.py", path], env=environment)
    while lines() < 3 and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert 3 <= lines() < SAMPLES * len(TASKS)
    with path.open("ab") as file:
        file.write(b'{"schema_version":1,"task":{"env":"keyd')
    assert content(run(path)) == content(uninterrupted)


def test_samples_seeds_and_agents_differ(uninterrupted, tmp_path):
    sampled = {tuple(turn.token_ids for turn in t.turns) for t in uninterrupted}
    assert len(sampled) == len(uninterrupted) == SAMPLES * len(TASKS)
    for name, change in {"seed": {"seed": 8}, "agent": {"agent": "failure"}}.items():
        others = run(tmp_path / f"{name}.jsonl", **change)
        assert not sampled & {tuple(turn.token_ids for turn in t.turns) for t in others}


@pytest.mark.parametrize(
    "change",
    [
        {"ref": PolicyRef(name="random", sha256="1" * 64)},
        {"sampling": Sampling(temperature=0.5)},
        {"seed": 8},
        {"agent": "failure"},
        {"protocol": "paper"},
        {"tasks": TASKS[:-1]},
        {"tasks": [*TASKS[:-1], Task(env="keydoor", task_id="door9", split="test", data=TASKS[9].data)]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_journal_of_another_rollout_is_refused(uninterrupted, tmp_path, change):
    path = tmp_path / "episodes.jsonl"
    jsonl.write(path, uninterrupted)
    with pytest.raises(UserError, match=r"episodes\.jsonl: episode .* is of another"):
        run(path, **change)
    assert len(jsonl.read(path, Trajectory)) == len(uninterrupted)


def test_a_scripted_expert_ends_with_its_task():
    """What a script says after the end is no turn of the expert."""
    env = KeyDoor()
    texts = [*gold(1), write_action("go left"), write_action("go left")]
    played = play_expert(env, task(1), lambda _: (text for text in texts), "", "fixed")
    assert ([turn.text for turn in played.turns], played.stop) == (gold(1), StopReason.DONE)
