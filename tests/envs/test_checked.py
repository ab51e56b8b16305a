"""Answers of an environment of another package: each fault is one sentence with its place, and actions have a bound."""

import inspect
import sys
from fractions import Fraction

import pytest
from rollout.keydoor import KeyDoor, task
from rollout.playing import play

from coevolve.envs.base import StepResult
from coevolve.envs.checked import ACTION_LIMIT, CheckedEnv
from coevolve.errors import UserError
from coevolve.policies.base import ScriptedPolicy
from coevolve.records.episodes import StopReason

RIGHT = {"observation": "a room", "reward": 0.5, "score": 5.0, "done": False}


class Faulty(KeyDoor):
    """A step of it calls `act`, and its steps are limited by `limit`."""

    def __init__(self, act=lambda: None, limit=7):
        super().__init__()
        self._act, self._limit = act, limit

    def step(self, action):
        return self._act()

    def step_limit(self, task):
        return self._limit


def line_of(method):
    return f"({__file__}:{inspect.getsourcelines(method)[1]})"


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("reward", float("nan"), "the reward nan, not a finite number"),
        ("reward", None, "the reward None, not a finite number"),
        ("reward", "1", "the reward '1', not a finite number"),
        ("reward", 2, "the reward 2, not a number from 0 to 1"),
        ("score", float("inf"), "the score inf, not a finite number"),
        ("score", [1], r"the score [1], not a finite number"),
        ("done", "no", "`done` as 'no', not as True or False"),
        ("done", None, "`done` as None, not as True or False"),
        ("observation", None, "None, not a text"),
        ("observation", b"a room", "b'a room', not a text"),
    ],
)
def test_a_wrong_answer_is_one_sentence(part, value, words):
    env = CheckedEnv(Faulty(lambda: StepResult(**RIGHT | {part: value})))
    env.start(task(1))
    with pytest.raises(UserError) as raised:
        env.step("look")
    place = line_of(Faulty.step)
    assert (
        str(raised.value)
        == f"environment `keydoor`, task `door1`: `step` returned {words} {place}; correct the environment."
    )


@pytest.mark.parametrize("limit", [float("inf"), 10**9, 0, "7", None])
def test_an_episode_has_a_finite_number_of_steps(limit, tmp_path):
    with pytest.raises(UserError, match=r"`step_limit` returned .*, not a whole number from 1 to 100,000"):
        play(tmp_path / "e", [CheckedEnv(Faulty(limit=limit))], [task(0)], ScriptedPolicy(lambda _: "Action: look"))


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: int("one"), "failed with ValueError: invalid literal"),
        (lambda: sys.exit(0), "failed with SystemExit: 0"),
    ],
)
def test_an_exception_names_the_line_of_the_environment(act, words):
    env = CheckedEnv(Faulty(act))
    env.start(task(1))
    with pytest.raises(UserError, match=words) as raised:
        env.step("look")
    assert f"({__file__}:{act.__code__.co_firstlineno})" in str(raised.value)


def test_numbers_of_other_types_are_read_as_numbers_and_other_answers_refused():
    answers = [StepResult("a room", reward=Fraction(1, 2), score=5, done=1), {}]
    env = CheckedEnv(Faulty(lambda: answers.pop(0)))
    env.start(task(1))
    assert env.step("look") == StepResult("a room", reward=0.5, score=5.0, done=True)
    with pytest.raises(UserError, match=r"`step` returned \{\}"):
        env.step("look")


def test_an_action_that_is_too_long_is_an_observation_and_not_executed(tmp_path):
    """The same episode as without it, with one turn more; an environment may set another limit."""

    def script(conversation):
        turn = len(conversation.turns)
        words = ["take key", "take key " + "x" * ACTION_LIMIT, "go right", "go right", "go right", "open door"]
        return f"Action: {words[turn]}"

    wide = KeyDoor()
    wide.action_limit = 10**6
    episodes = [
        play(tmp_path / str(n), [CheckedEnv(env)], [task(0)], ScriptedPolicy(script))[0]
        for n, env in enumerate((KeyDoor(), wide))
    ]
    assert [(e.stop, e.reward, len(e.turns)) for e in episodes] == [(StopReason.DONE, 1.0, 6)] * 2
    length = f"{ACTION_LIMIT + 9:,}"
    refused = f"The action was not executed: it has {length} characters, and at most {ACTION_LIMIT:,} are allowed."
    assert [e.turns[1].observation for e in episodes] == [refused, "That does not work here."]
    assert episodes[0].turns[1].score == 5.0
