"""Replay of recorded trajectories, which tests an environment without a model.

The recorded actions must meet the recorded text, scores and end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from coevolve.envs.base import Env
from coevolve.types import StopReason, Trajectory


@dataclass(frozen=True)
class ReplayDifference:
    """Where a replay left the record; `turn` counts from 0, -1 is the start."""

    task_id: str
    turn: int
    what: Literal["start", "observation", "score", "ending", "reward"]
    expected: str
    actual: str


@dataclass(frozen=True)
class ReplaySummary:
    """Numbers of replayed episodes, of their turns, and of episodes with a difference; and all differences."""

    episodes: int
    turns: int
    different: int
    differences: tuple[ReplayDifference, ...]

    @property
    def first(self) -> ReplayDifference | None:
        """The first difference, None if there is none."""
        return self.differences[0] if self.differences else None


def replay(env: Env, trajectory: Trajectory, tolerance: float = 0.0) -> list[ReplayDifference]:
    """All differences between `trajectory` and what its actions meet in `env`; scores may differ by `tolerance`."""
    differences: list[ReplayDifference] = []

    def compare(turn: int, what: Literal["start", "observation", "ending"], expected: object, actual: object) -> None:
        if expected != actual:
            differences.append(ReplayDifference(trajectory.task.task_id, turn, what, str(expected), str(actual)))

    def compare_number(turn: int, what: Literal["score", "reward"], expected: float, actual: float) -> None:
        if abs(expected - actual) > tolerance:
            differences.append(ReplayDifference(trajectory.task.task_id, turn, what, str(expected), str(actual)))

    compare(-1, "start", trajectory.prompt[-1].content, env.start(trajectory.task))
    last = len(trajectory.turns) - 1
    for number, turn in enumerate(trajectory.turns):
        result = env.step(turn.action)
        compare(number, "observation", turn.observation, result.observation)
        compare_number(number, "score", turn.score, result.score)
        compare(number, "ending", number == last and trajectory.stop is StopReason.DONE, result.done)
        if number == last:
            compare_number(number, "reward", trajectory.reward, result.reward)
    return differences


def replay_all(env: Env, trajectories: Iterable[Trajectory], tolerance: float = 0.0) -> ReplaySummary:
    """Replays `trajectories` one after another; scores may differ by `tolerance`."""
    episodes = turns = different = 0
    differences: list[ReplayDifference] = []
    for trajectory in trajectories:
        episode_differences = replay(env, trajectory, tolerance)
        episodes += 1
        turns += len(trajectory.turns)
        different += bool(episode_differences)
        differences += episode_differences
    return ReplaySummary(episodes, turns, different, tuple(differences))
