"""Learnability: whether training on rewards alone raises the reward, adjusted for the tasks of each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coevolve.methods.task_evolution.signals import visits
from coevolve.records.episodes import Trajectory
from coevolve.report.stats import Vector


@dataclass(frozen=True)
class _Practice:
    """The visits to tasks of one training: `slope` is the rise of the score from its first to its last step.

    `slope_before` is that of the tasks' rewards before the training; `left` and `left_before`, of shape (visits,), are
    what the two lines leave.
    """

    slope: float
    slope_before: float
    left: Vector
    left_before: Vector


def rises(trainings: Sequence[Sequence[Trajectory]], before: Sequence[Mapping[str, float]]) -> list[float]:
    """The rise of reward from the first to the last step of each training, adjusted for the tasks.

    `trainings` are the episodes in order of their steps, `before` the reward of each task before the training. Steps
    have different tasks, so scores are adjusted for `before` by one coefficient for all trainings (analysis of
    covariance); an unknown task counts as a mean one. Trainings with fewer than two steps have no rise.
    """
    practised = [
        practice
        for episodes, rewards in zip(trainings, before, strict=True)
        if (practice := _practice(episodes, rewards)) is not None
    ]
    varied = sum(float(each.left_before @ each.left_before) for each in practised)
    shared = sum(float(each.left_before @ each.left) for each in practised)
    weight = shared / varied if varied > 0.0 else 0.0
    return [each.slope - weight * each.slope_before for each in practised]


def _practice(episodes: Sequence[Trajectory], before: Mapping[str, float]) -> _Practice | None:
    """The visits of one training; None with fewer than two steps."""
    seen = visits([episodes])
    known = [before[visit.task.task_id] for visit in seen if visit.task.task_id in before]
    usual = float(np.mean(known)) if known else 0.0
    steps_v = _centred([visit.step for visit in seen])
    if not steps_v.any():
        return None
    steps_v /= max(visit.step for visit in seen)
    scores_v = _centred([visit.score for visit in seen])
    before_v = _centred([before.get(visit.task.task_id, usual) for visit in seen])
    slope, slope_before = (float(steps_v @ values_v / (steps_v @ steps_v)) for values_v in (scores_v, before_v))
    return _Practice(slope, slope_before, scores_v - slope * steps_v, before_v - slope_before * steps_v)


def _centred(values: Sequence[float]) -> Vector:
    values_v: Vector = np.array(values, dtype=np.float64)
    return values_v - values_v.mean() if len(values_v) else values_v
