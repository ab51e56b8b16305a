"""Means over evaluated episodes with bootstrap intervals clustered by task.

A task's value is the mean over its records (its seeds), and **every task weighs the same**: the quantity of interest is
the average over test instructions, and seeds are repeated measurements of one instruction, so an episode lost to a
broken environment must not make its instruction count less. With equally many records per task it is the plain mean.

Intervals are percentile bootstrap: tasks are drawn with replacement and bring all their records. What they express is
the choice of instructions, not of training seeds; with a single task their width is 0 and says nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from coevolve.errors import UserError
from coevolve.types import Estimate, EvalRecord

Quantity = Callable[[EvalRecord], float]
TaskKey = tuple[str, str]
Vector = NDArray[np.float64]

#: Most task draws held in memory at once.
DRAWS = 2**22


def reward(record: EvalRecord) -> float:
    """Reward of an episode, in [0, 1]."""
    return record.reward


def success(record: EvalRecord) -> float:
    """1 for a success, else 0."""
    return float(record.success)


def estimate(
    records: Sequence[EvalRecord],
    *,
    resamples: int,
    confidence: float,
    rng: np.random.Generator,
    quantity: Quantity = reward,
) -> Estimate:
    """Mean of a quantity over tasks with its interval, in the quantity's units; raises `UserError` without records."""
    return macro_average([records], resamples=resamples, confidence=confidence, rng=rng, quantity=quantity)


def macro_average(
    groups: Sequence[Sequence[EvalRecord]],
    *,
    resamples: int,
    confidence: float,
    rng: np.random.Generator,
    quantity: Quantity = reward,
) -> Estimate:
    """Mean of the groups' means, each group resampled on its own; raises `UserError` if a group has no records."""
    if not groups or not all(groups):
        raise UserError("no evaluation records to average; run the evaluation first.")
    values_g = [_in_order(_task_means(records, quantity)) for records in groups]
    draws_b = np.mean([_bootstrap(values_t, resamples, rng) for values_t in values_g], axis=0)
    mean = float(np.mean([values_t.mean() for values_t in values_g]))
    everything = [record for records in groups for record in records]
    return _estimate(mean, draws_b, confidence, everything, n_tasks=sum(map(len, values_g)))


def difference(
    a: Sequence[EvalRecord],
    b: Sequence[EvalRecord],
    *,
    resamples: int,
    confidence: float,
    rng: np.random.Generator,
    quantity: Quantity = reward,
) -> Estimate:
    """Mean over the tasks both have of a's value minus b's, with its interval; `n` counts the records of both.

    Raises `UserError` if they share no task.
    """
    means_a, means_b = _task_means(a, quantity), _task_means(b, quantity)
    shared = means_a.keys() & means_b.keys()
    if not shared:
        raise UserError("the two methods share no evaluated task; evaluate them on the same split.")
    values_t = _in_order({task: means_a[task] - means_b[task] for task in shared})
    used = [record for record in (*a, *b) if _task(record) in shared]
    return _estimate(
        float(values_t.mean()), _bootstrap(values_t, resamples, rng), confidence, used, n_tasks=len(shared)
    )


def _task(record: EvalRecord) -> TaskKey:
    return record.split, record.task_id


def _task_means(records: Sequence[EvalRecord], quantity: Quantity) -> dict[TaskKey, float]:
    values: defaultdict[TaskKey, list[float]] = defaultdict(list)
    for record in records:
        values[_task(record)].append(quantity(record))
    # Sorted, so that the sum does not depend on the order in which episodes ended.
    return {task: float(np.mean(sorted(of_task))) for task, of_task in values.items()}


def _in_order(values: Mapping[TaskKey, float]) -> Vector:
    return np.array([values[task] for task in sorted(values)])


def _bootstrap(values_t: Vector, resamples: int, rng: np.random.Generator) -> Vector:
    """Means of `resamples` draws of tasks with replacement; shape (resamples,)."""
    tasks = len(values_t)
    rows = max(1, DRAWS // tasks)
    sizes = [min(rows, resamples - start) for start in range(0, resamples, rows)]
    return np.concatenate([values_t[rng.integers(tasks, size=(size, tasks))].mean(axis=1) for size in sizes])


def _estimate(mean: float, draws_b: Vector, confidence: float, records: Sequence[EvalRecord], n_tasks: int) -> Estimate:
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(draws_b, [tail, 1.0 - tail])
    return Estimate(
        mean=mean,
        low=float(low),
        high=float(high),
        n=len(records),
        n_tasks=n_tasks,
        n_seeds=len({record.seed for record in records}),
    )
