"""Where a round explores: starts at random training tasks, or at the tasks of signals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coevolve.agent_data.records import TaskSignal
from coevolve.records.episodes import Task

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class ExplorationStart:
    """The task in whose initial state a fragment begins, and the signal that led there, if any.

    `repeated` are the signal's actions that are repeated first. `actions`: the number of executed actions, with these,
    after which exploration ends. `extra`: how many of the repeated actions the limits of a fragment do not count.
    """

    start: Task
    signal: TaskSignal | None
    repeated: tuple[str, ...]
    actions: int
    extra: int = 0


def unguided(tasks: Sequence[Task], count: int, most: int, rng: np.random.Generator) -> list[ExplorationStart]:
    """`count` starts at tasks in the order of random permutations; each ends after 1 to `most` actions."""
    order: list[int] = []
    while len(order) < count:
        order += rng.permutation(len(tasks)).tolist()
    return [ExplorationStart(tasks[index], None, (), int(rng.integers(1, most + 1))) for index in order[:count]]


def guided(signals: Sequence[TaskSignal], count: int, most: int, rng: np.random.Generator) -> list[ExplorationStart]:
    """`count` starts at the tasks of the signals, in the order of random permutations; none without a signal.

    A fragment repeats the signal's first actions, their number drawn, and ends after at most `most` executed actions.
    Of a rare action's signal it repeats all, up to the rare one, and ends after at most `most` further ones.
    """
    order: list[int] = []
    while signals and len(order) < count:
        order += rng.permutation(len(signals)).tolist()
    return [_guided(signals[index], most, rng) for index in order[:count]]


def _guided(signal: TaskSignal, most: int, rng: np.random.Generator) -> ExplorationStart:
    extra = len(signal.actions) if signal.kind == "rare" else 0
    repeated = extra or int(rng.integers(0, min(len(signal.actions), most - 1) + 1))
    actions = int(rng.integers(repeated + 1, extra + most + 1))
    return ExplorationStart(signal.task, signal, signal.actions[:repeated], actions, extra)
