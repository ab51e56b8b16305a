"""The curves of all trainings: loss, reward margin, log-probs and reward by step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from statistics import fmean
from typing import TYPE_CHECKING

from coevolve.records.provenance import Provenance
from coevolve.records.training import TrainReport, TrajectoryLogps
from coevolve.report import drawing, stats
from coevolve.report.drawing import Points
from coevolve.report.labels import ReportLabels
from coevolve.results.tables import of_job, step_metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The figure's file.
NAME = "training_curves.svg"
#: A curve has at most so many points: means over equal numbers of steps.
POINTS = 120
#: Title of a panel, and the metrics in it with their styles.
_METRICS = {
    "loss": {"loss": "-"},
    "reward margin": {"rewards/margins": "-"},
    "log-probs, nats": {"logps/chosen": "-", "logps/rejected": "--"},
    "reward": {"reward": "-"},
}


#: Name and style of a curve, and the points of each seed.
Curve = tuple[str, str, Mapping[int, Points]]


@dataclass(frozen=True)
class TrainingCurve:
    """The history of one training."""

    model: str
    env: str
    method: str
    seed: int
    iteration: int
    agent: str
    history: Sequence[Mapping[str, float]]
    gold: TrajectoryLogps | None = None


def trainings(jobs: Iterable[Provenance]) -> Iterator[TrainingCurve]:
    """The histories of the trainings among finished jobs."""
    for job in jobs:
        if isinstance(job.notes, TrainReport) and job.notes.history:
            of, agent = of_job(job), job.wildcards.get("agent", "target")
            names = (of.model, of.env, of.method, of.seed, of.iteration, agent)
            yield TrainingCurve(*names, job.notes.history, job.notes.gold)


def draw(trainings: Sequence[TrainingCurve], labels: ReportLabels) -> Figure:
    """The figure: panels for each environment, model, method and agent, the iterations one after another."""
    groups = stats.group_by(trainings, "env", "model", "method", "agent")
    order, several = [*labels.envs], len({each.model for each in trainings}) > 1
    charts = []
    for key in sorted(groups, key=lambda key: (order.index(key[0]), key[1], labels.order(*key[2:]))):
        env, model, method, agent = key
        name = f"{labels.method(method)}, {agent} agent" + (f", {model}" if several else "")
        charts += [(f"{labels.env(env)}: {name}", method, groups[key], *each) for each in panels(name, groups[key])]
    figure, every = drawing.panels("Training curves", len(charts), columns=4)
    for axes, (name, method, group, title, curves) in zip(every, charts, strict=True):
        drawing.label(axes, f"{name}: {title}", "step", title)
        for start in [*starts(group).values()][1:]:
            axes.axvline(start, color="black", alpha=0.4, linestyle=":")
        for curve, style, seeds in curves:
            means = stats.mean_curve(chain.from_iterable(seeds.values()))
            thin = {seed: thinned(points) for seed, points in seeds.items()}
            drawing.curves(axes, curve, labels.colour(method), thinned(means), thin, style)
        axes.locator_params(axis="x", integer=True, nbins=4)
    return figure


def panels(name: str, group: Sequence[TrainingCurve]) -> Iterator[tuple[str, list[Curve]]]:
    """Title and curves of each panel that has any, of one method's trainings; `name` begins the curves' names."""
    seeds = sorted({each.seed for each in group})
    for title, metrics in _METRICS.items():
        curves: list[Curve] = [
            (f"{name}, {metric}", style, {seed: _points(group, seed, metric) for seed in seeds})
            for metric, style in metrics.items()
        ]
        if any(points for *_, of_seeds in curves for points in of_seeds.values()):
            yield title, curves
    if curves := list(_gold_curves(name, group)):
        yield "gold log-prob, nats", curves


def starts(group: Sequence[TrainingCurve]) -> dict[int, int]:
    """The step at which each iteration starts: the sum of the longest trainings of the iterations before."""
    of_iteration = stats.group_by(sorted(group, key=lambda each: each.iteration), "iteration")
    lengths = {number: max(len(each.history) for each in some) for (number,), some in of_iteration.items()}
    return dict(zip(lengths, accumulate(lengths.values(), initial=0), strict=False))


def thinned(points: Points) -> list[tuple[float, float]]:
    """At most `POINTS` points: means of equally many neighbours."""
    size = max(1, math.ceil(len(points) / POINTS))
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(fmean(x for x, _ in group), fmean(y for _, y in group)) for group in groups]


def _points(group: Sequence[TrainingCurve], seed: int, metric: str) -> list[tuple[float, float]]:
    """(step, value) of one seed, the iterations one after another."""
    first = starts(group)
    return [
        (float(first[each.iteration] + number), value)
        for each in sorted((each for each in group if each.seed == seed), key=lambda each: each.iteration)
        for number, step in enumerate(each.history, start=1)
        if (value := step_metric(step, metric)) is not None
    ]


def _gold_curves(name: str, group: Sequence[TrainingCurve]) -> Iterator[Curve]:
    """The experts' log-prob before and after each iteration; all lines of one end with its longest training."""
    for iteration, start in starts(group).items():
        of_iteration = [each for each in group if each.iteration == iteration]
        end = start + max(len(each.history) for each in of_iteration)
        ends = {
            each.seed: [(float(x), y) for x, y in ((start, gold.before), (end, gold.after)) if y is not None]
            for each in of_iteration
            if (gold := each.gold)
        }
        if ends:
            yield f"{name}, gold log-prob, iteration {iteration}", "o-", ends
