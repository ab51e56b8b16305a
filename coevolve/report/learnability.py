"""Learnability: whether training on rewards alone raises the reward, adjusted for the tasks of each step."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from coevolve.agent_data.records import visits
from coevolve.records.episodes import Trajectory
from coevolve.report.estimation import Vector

#: The rise of a value from the first to the last step of a training, and what it leaves of each visit to a task.
Line = tuple[float, Vector]


class Score(NamedTuple):
    """The mean reward of a task's group of episodes in one step of a training; steps count from 0."""

    task_id: str
    step: int
    score: float


def scores(episodes: Iterable[Trajectory]) -> list[Score]:
    """The scores of a training, from its episodes in order of their steps; the episodes' texts are not held."""
    bare = (episode.model_copy(update={"prompt": (), "turns": ()}) for episode in episodes)
    return [Score(visit.task.task_id, visit.step, visit.score) for visit in visits([bare])]


def rises(trainings: Sequence[Sequence[Score]], before: Sequence[Mapping[str, float]]) -> list[float]:
    """The rise of reward from the first to the last step of each training, adjusted for the tasks.

    `trainings` are the scores in order of their steps, `before` the reward of each task before the training. Steps
    have different tasks, so scores are adjusted for `before` by one coefficient for all trainings (analysis of
    covariance); an unknown task counts as a mean one. Trainings with fewer than two steps have no rise.
    """
    lines = [_lines(*practice) for practice in zip(trainings, before, strict=True)]
    fitted = [line for line in lines if line is not None]
    varied = sum(float(left_before @ left_before) for _, (_, left_before) in fitted)
    shared = sum(float(left_before @ left) for (_, left), (_, left_before) in fitted)
    weight = shared / varied if varied > 0.0 else 0.0
    return [slope - weight * slope_before for (slope, _), (slope_before, _) in fitted]


def _lines(seen: Sequence[Score], before: Mapping[str, float]) -> tuple[Line, Line] | None:
    """The lines of the scores and of the rewards before, over one training's visits; None with fewer than two steps."""
    known = [before[visit.task_id] for visit in seen if visit.task_id in before]
    usual = float(np.mean(known)) if known else 0.0
    steps_v = _centred([visit.step for visit in seen])
    if not steps_v.any():
        return None
    steps_v /= max(visit.step for visit in seen)
    scores_v = _centred([visit.score for visit in seen])
    before_v = _centred([before.get(visit.task_id, usual) for visit in seen])
    return _line(steps_v, scores_v), _line(steps_v, before_v)


def _line(steps_v: Vector, values_v: Vector) -> Line:
    slope = float(steps_v @ values_v / (steps_v @ steps_v))
    return slope, values_v - slope * steps_v


def _centred(values: Sequence[float]) -> Vector:
    values_v: Vector = np.array(values, dtype=np.float64)
    return values_v - values_v.mean() if len(values_v) else values_v
