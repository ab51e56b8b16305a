"""Replay of recorded trajectories, which tests an environment without a model.

The recorded actions must meet the recorded text, scores and end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from coevolve.chat.prompts import without_surrogates
from coevolve.envs.base import Env
from coevolve.records.episodes import StopReason, Trajectory

ReplayedPart = Literal["start", "observation", "score", "ending", "reward"]


@dataclass(frozen=True)
class ReplayDifference:
    """Where a replay left the record; `turn` counts from 0, -1 is the start."""

    task_id: str
    turn: int
    what: ReplayedPart
    expected: str
    actual: str


@dataclass(frozen=True)
class ReplaySummary:
    """Numbers of replayed episodes, of their turns, and of episodes with a difference; and all differences."""

    episodes: int
    turns: int
    different: int
    differences: tuple[ReplayDifference, ...]


def replay(env: Env, trajectory: Trajectory, tolerance: float = 0.0) -> list[ReplayDifference]:
    """All differences between `trajectory` and what its actions meet in `env`; scores may differ by `tolerance`."""
    # An episode whose environment failed to start has no prompt.
    recorded = trajectory.prompt[-1].content if trajectory.prompt else trajectory.error
    compared: list[tuple[int, ReplayedPart, object, object]] = [
        (-1, "start", recorded, without_surrogates(env.start(trajectory.task)))
    ]
    last = len(trajectory.turns) - 1
    for number, turn in enumerate(trajectory.turns):
        result = env.step(turn.action)
        compared.append((number, "observation", turn.observation, without_surrogates(result.observation)))
        compared.append((number, "score", turn.score, result.score))
        compared.append((number, "ending", number == last and trajectory.stop is StopReason.DONE, result.done))
        if number == last:
            compared.append((number, "reward", trajectory.reward, result.reward))
    return [
        ReplayDifference(trajectory.task.task_id, number, what, str(expected), str(actual))
        for number, what, expected, actual in compared
        if not _agree(expected, actual, tolerance)
    ]


def replay_all(env: Env, trajectories: Sequence[Trajectory], tolerance: float = 0.0) -> ReplaySummary:
    """Replays `trajectories` one after another; scores may differ by `tolerance`."""
    differences = [replay(env, trajectory, tolerance) for trajectory in trajectories]
    turns = sum(len(trajectory.turns) for trajectory in trajectories)
    return ReplaySummary(len(differences), turns, sum(map(bool, differences)), tuple(chain.from_iterable(differences)))


def _agree(expected: object, actual: object, tolerance: float) -> bool:
    if isinstance(expected, float) and isinstance(actual, float):
        return abs(expected - actual) <= tolerance
    return expected == actual
