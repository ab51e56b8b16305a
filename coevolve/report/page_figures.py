"""The charts of the report page, drawn from the data files of the products and the notes of the trainings."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from pathlib import Path
from statistics import fmean

from coevolve.config.names import PairKind
from coevolve.records.drops import DropReason
from coevolve.records.training import TrajectoryLogps
from coevolve.report import analysis, figure2, figure3, pair_counts, stats
from coevolve.report.charts import BarRow, Curve, Segment, bar_rows, histogram, legend, line_chart, seed_curves
from coevolve.report.costs import Line
from coevolve.report.labels import SHARED, ReportLabels, kind_label, words
from coevolve.report.number_text import duration, readable, with_interval
from coevolve.report.pair_counts import PairCount
from coevolve.storage import product_file

#: A curve of a training has at most so many points: means over equal numbers of steps.
POINTS = 120
_AGENTS = ("target", "failure")
History = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class PageChart:
    """A chart as SVG or HTML with the text above it."""

    title: str
    content: str


@dataclass(frozen=True)
class PageFigure:
    """A section of the page; `data` are the names of its data files, `folded` charts open on demand.

    Data files are those of products, by name, and folders of trainings below the suite's results. `texts` are names of
    Markdown files that are shown in the section.
    """

    title: str
    caption: str
    data: Sequence[str]
    charts: Sequence[PageChart]
    folded: Mapping[str, Sequence[PageChart]] = field(default_factory=dict)
    texts: Sequence[str] = ()


@dataclass(frozen=True)
class TrainingCurve:
    """The history of one training; `result` is its folder below the suite's results."""

    model: str
    env: str
    method: str
    seed: int
    iteration: int
    agent: str
    result: str
    history: History
    gold: TrajectoryLogps | None = None


def learning_curves(path: Path, labels: ReportLabels) -> PageFigure:
    """Average reward by iteration, from `figure3.json`: means with intervals, and the mean of each seed."""
    data = product_file.read(path, figure3.Curves)
    charts = []
    for (env, split), points in stats.group_by(data.points, "env", "split").items():
        curves = [curve for method in labels.methods for curve in _method_curves(points, method, labels)]
        title = labels.split(env, split)
        charts.append(PageChart(title, line_chart(title, curves, "iteration", "average reward x 100")))
    names = [(labels.method(name), labels.colour(name), "mean") for name in labels.methods if name in data.labels]
    return PageFigure(
        "Learning curves",
        f"{data.caption} Thick: mean over seeds; thin: each seed, where there are several.",
        ["figure3.json", "figure3.svg", "figure3.png"],
        [PageChart("", legend(names)), *charts],
    )


def _method_curves(points: Sequence[figure3.Point], method: str, labels: ReportLabels) -> Iterator[Curve]:
    drawn = figure3.curve(points, method)
    if not drawn:
        return
    colour, name = labels.colour(method), labels.method(method)
    means = [(point.iteration, 100 * point.estimate.mean) for point in drawn]
    ends = [(point.iteration, 100 * point.estimate.low, 100 * point.estimate.high) for point in drawn]
    yield Curve(name, colour, means, "mean", ends, markers=True)
    seeds: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for point in drawn:
        for seed, mean in point.estimate.seed_means.items():
            seeds[seed].append((point.iteration, 100 * mean))
    yield from seed_curves(name, colour, seeds)


def failure_numbers(path: Path, labels: ReportLabels) -> PageFigure:
    """Figure 2 from `figure2.json`: failures of two methods, and the rewards of their shared failures."""
    data = product_file.read(path, figure2.FailureFigure)
    charts = []
    for panel in data.panels:
        for quantity, heading in figure2.QUANTITIES.items():
            rows = []
            for bar in (bar for bar in panel.bars if bar.quantity == quantity):
                name = labels.method(bar.method) + (f", {bar.agent} agent" if bar.agent else "")
                text = with_interval(bar.estimate.mean, bar.estimate.low, bar.estimate.high, readable)
                colour = labels.colour(bar.method) + 2 * (bar.agent is not None)
                rows.append(BarRow(name, [[Segment(name, colour, bar.estimate.mean)]], text))
            title = f"{labels.env(panel.env)}: {heading} ({readable(panel.instructions)} instructions)"
            charts.append(PageChart(title, bar_rows(rows)))
    names = ["figure2.json", "figure2.svg", "figure2.png"]
    return PageFigure("Figure 2: failures", data.caption, names, charts)


def failure_rewards(path: Path, labels: ReportLabels) -> PageFigure:
    """Histograms of the rewards of failures by agent and iteration, summed over seeds, from `analysis.json`."""
    folded = {}
    for (env,), of_env in stats.group_by(analysis.Analysis.read(path).failure_rewards, "env").items():
        groups = stats.group_by(of_env, "method", "agent", "iteration")
        counts = {key: zip(*(row.counts for row in group), strict=True) for key, group in groups.items()}
        sums = {key: [sum(column) for column in columns] for key, columns in counts.items()}
        top = max(1, *map(max, sums.values()))
        folded[labels.env(env)] = [
            PageChart(title, histogram(f"{labels.env(env)}: {title}", bins, labels.colour(method), top))
            for (method, agent, iteration), bins in sorted(sums.items(), key=lambda item: _order(labels, *item[0]))
            for title in [f"{labels.method(method)}, {agent} agent, iteration {iteration}"]
        ]
    return PageFigure(
        "Rewards of failures",
        "Number of failed explorations by reward, in ten equal bins of [0, 1), all seeds together.",
        ["analysis.json"],
        [],
        folded,
    )


def pairs_and_drops(path: Path, labels: ReportLabels) -> PageFigure:
    """Pairs and dropped candidates by method, agent, iteration and pair kind, summed over seeds, from `pairs.json`."""
    rows = pair_counts.read_rows(path)
    reasons = [reason for reason in DropReason if any(reason in row.drops for row in rows)]
    folded = {}
    for (env,), of_env in stats.group_by(rows, "env").items():
        groups = stats.group_by(of_env, "method", "agent", "iteration", "kind")
        ordered = sorted(groups, key=lambda key: (_order(labels, *key[:3]), key[3]))
        bars = [_pair_row(groups[key], reasons, labels) for key in ordered]
        folded[labels.env(env)] = [PageChart("", bar_rows(bars))]
    names = [("pairs", 0, "thick"), *((words(name), 1 + i, "thick") for i, name in enumerate(reasons))]
    return PageFigure(
        "Pairs and drops",
        "Candidates of each pair kind, all seeds together: those that became pairs, and those dropped, by reason.",
        ["pairs.json"],
        [PageChart("", legend(names))] if rows else [],
        folded,
    )


def _pair_row(group: Sequence[PairCount], reasons: Sequence[DropReason], labels: ReportLabels) -> BarRow:
    """The counts of one method, agent, iteration and pair kind, summed over seeds."""
    first = group[0]
    pairs = sum(row.pairs for row in group)
    dropped = {reason: sum(row.drops.get(reason, 0) for row in group) for reason in reasons}
    parts = [Segment("pairs", 0, pairs)]
    parts += [Segment(words(name), 1 + i, dropped[name]) for i, name in enumerate(reasons) if dropped[name]]
    lost = ", ".join(f"{words(name)} {count:,}" for name, count in dropped.items() if count) or "none"
    return BarRow(
        f"{labels.method(first.method)}, {first.agent} agent, iteration {first.iteration}: {kind_label(first.kind)}",
        [parts],
        f"{pairs:,} pairs of {sum(row.candidates for row in group):,} candidates; dropped: {lost}",
    )


def training_curves(trainings: Sequence[TrainingCurve], labels: ReportLabels) -> PageFigure:
    """Loss, reward margin, log-probs and reward of every training, by step."""
    groups = stats.group_by(trainings, "env", "model", "method", "agent")
    models = {each.model for each in trainings}
    folded: defaultdict[str, list[PageChart]] = defaultdict(list)
    order = [*labels.envs]
    for key in sorted(groups, key=lambda key: (order.index(key[0]), key[1], _order(labels, *key[2:]))):
        env, model, method, agent = key
        name = f"{labels.method(method)}, {agent} agent" + (f", {model}" if len(models) > 1 else "")
        folded[labels.env(env)] += _training_charts(name, groups[key], labels.colour(method))
    return PageFigure(
        "Training curves",
        "By optimiser step, iterations one after another with a line between them. Thick: mean over seeds; thin: each "
        "seed, where there are several. Values of pairs are means over the pairs of a step: the margin is that of the "
        "implicit rewards, log-probs are in nats (solid: chosen, dashed: rejected). Gold log-probs are those of a "
        "sample of the training's experts, before and after it. A training with more than "
        f"{POINTS} steps is drawn as means over equal numbers of steps.",
        [t.result for t in trainings],
        [],
        folded,
    )


#: Title of a chart, and the metrics in it with their styles.
_METRICS = {
    "loss": {"loss": "mean"},
    "reward margin": {"rewards/margins": "mean"},
    "log-probs, nats": {"logps/chosen": "mean", "logps/rejected": "mean dashed"},
    "reward": {"reward": "mean"},
}


def _training_charts(name: str, group: Sequence[TrainingCurve], colour: int) -> Iterator[PageChart]:
    lengths: defaultdict[int, int] = defaultdict(int)
    for each in group:
        lengths[each.iteration] = max(lengths[each.iteration], len(each.history))
    ordered = sorted(lengths)
    starts = dict(zip(ordered, accumulate((lengths[i] for i in ordered), initial=0), strict=False))
    for title, metrics in _METRICS.items():
        curves = []
        for metric, style in metrics.items():
            seeds = {seed: _points(group, seed, starts, metric) for seed in {each.seed for each in group}}
            label = f"{name}, {metric}"
            curves.append(Curve(label, colour, stats.mean_curve(chain.from_iterable(seeds.values())), style))
            curves += seed_curves(label, colour, seeds)
        drawn = [replace(curve, points=thinned(curve.points)) for curve in curves]
        if chart := line_chart(f"{name}: {title}", drawn, "step", title, breaks=list(starts.values())[1:]):
            yield PageChart(f"{name}: {title}", chart)
    title = f"{name}: gold log-prob, nats"
    if chart := line_chart(title, list(_gold_curves(name, group, colour, starts)), "step", "gold log-prob, nats"):
        yield PageChart(title, chart)


def _gold_curves(name: str, group: Sequence[TrainingCurve], colour: int, starts: Mapping[int, int]) -> Iterator[Curve]:
    """The experts' log-prob before and after each iteration: a line for each, the mean over seeds, and the seeds'.

    All lines of an iteration end with its longest training, so that the mean is over the same seeds at both ends.
    """
    for iteration, start in starts.items():
        of_iteration = [each for each in group if each.iteration == iteration]
        end = start + max(len(each.history) for each in of_iteration)
        ends: dict[int, list[tuple[float, float]]] = {}
        for each in of_iteration:
            if each.gold:
                values = ((start, each.gold.before), (end, each.gold.after))
                ends[each.seed] = [(float(x), value) for x, value in values if value is not None]
        label = f"{name}, gold log-prob, iteration {iteration}"
        if ends:
            yield Curve(label, colour, stats.mean_curve(chain.from_iterable(ends.values())), markers=True)
        yield from seed_curves(label, colour, ends)


def step_metric(step: Mapping[str, float], metric: str) -> float | None:
    """A metric of a step, or its mean over the step's pairs of all kinds; None for a step without it."""
    if metric in step:
        return step[metric]
    kinds = [kind for kind in PairKind if f"{kind}/{metric}" in step]
    pairs = sum(step[f"{kind}/pairs"] for kind in kinds)
    return sum(step[f"{kind}/{metric}"] * step[f"{kind}/pairs"] for kind in kinds) / pairs if pairs else None


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `POINTS` points: means of equally many neighbours."""
    size = max(1, math.ceil(len(points) / POINTS))
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(fmean(x for x, _ in group), fmean(y for _, y in group)) for group in groups]


def costs(path: Path, labels: ReportLabels) -> PageFigure:
    """Predicted and measured hours of the jobs that ran, by stage and by method, from `costs.json`."""
    charts = []
    for heading, lines in product_file.read(path, dict[str, list[Line]]).items():
        rows = []
        for line in lines:
            name = line.name if heading == "stage" else labels.method(line.name)
            hours = {"predicted": line.done_predicted_hours, "measured": line.done_measured_hours}
            bars = [[Segment(kind, number, value)] for number, (kind, value) in enumerate(hours.items())]
            text = ", ".join(f"{kind} {duration(value)}" for kind, value in hours.items())
            reused = f", {line.reused:,} reused" if line.reused else ""
            rows.append(BarRow(f"{words(name)}, {line.done:,} of {line.jobs:,} jobs{reused}", bars, text))
        charts.append(PageChart(f"By {heading}", bar_rows(rows)))
    names = legend([("predicted", 0, "thick"), ("measured", 1, "thick")])
    return PageFigure(
        "Costs",
        "Time of the jobs that ran, as predicted for the machine and as measured; jobs side by side add up.",
        ["costs.json"],
        [PageChart("", names), *charts],
    )


def _points(
    group: Sequence[TrainingCurve], seed: int, starts: Mapping[int, int], metric: str
) -> list[tuple[float, float]]:
    """(step, value) of one seed, the iterations one after another."""
    return [
        (float(starts[each.iteration] + number), value)
        for each in sorted((each for each in group if each.seed == seed), key=lambda each: each.iteration)
        for number, step in enumerate(each.history, start=1)
        if (value := step_metric(step, metric)) is not None
    ]


def _order(labels: ReportLabels, method: str, agent: str, iteration: int = 0) -> tuple[int, int, int]:
    """Sort key: methods in the suite's order, then agent and iteration; shared results come first."""
    return [*SHARED, *labels.methods, method].index(method), _AGENTS.index(agent), iteration
