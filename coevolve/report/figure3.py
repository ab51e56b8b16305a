"""Figure 3: average reward per iteration, one panel per environment and split, one curve per method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from coevolve.config.report import ReportConfig
from coevolve.config.suite import Suite
from coevolve.records.base import Record
from coevolve.records.tables import Estimate
from coevolve.report import drawing, estimation, stats
from coevolve.report.labels import ReportLabels
from coevolve.report.measurement import Measurement, common_setting, final
from coevolve.report.number_text import readable, with_interval
from coevolve.settings.protocol import Protocol

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The method whose policy is iteration 0 of every curve that has none of its own.
START = "sft"


class Point(Record):
    """Average reward in [0, 1] of a method after an iteration."""

    method: str
    env: str
    split: str
    iteration: int
    estimate: Estimate
    sources: tuple[str, ...]


class Curves(Record):
    """The data of the figure: a curve is the points of one method, environment and split, in order of iteration."""

    caption: str
    suite: str
    model: str
    protocol: Protocol
    labels: dict[str, str]
    points: tuple[Point, ...]


def curves(measurements: Sequence[Measurement], labels: Mapping[str, str], report: ReportConfig) -> Curves:
    """Points with their intervals; `labels` name all methods.

    SFT's measurement is iteration 0 of every method that has none of its own. Raises `UserError` as `common_setting`.
    """
    setting = common_setting(measurements)
    ordered = sorted(measurements, key=lambda m: (m.env, m.split, list(labels).index(m.method), m.iteration))
    points = [_point(measurement, report) for measurement in ordered]
    return Curves(
        caption=f"Average reward per iteration with its {100 * report.confidence:g} % interval over "
        f"tasks and, where there are several, trainings; "
        f"{_beginning(points, labels)}. The text of the paper prints no values for its Figure 3, so none are drawn. "
        f"{setting.sentence()}",
        **vars(setting),
        labels={method: label for method, label in labels.items() if any(p.method == method for p in points)},
        points=tuple(points),
    )


def drawn(suite: Suite, measured: Sequence[Measurement]) -> list[Measurement]:
    """What the curves are made of: SFT, the untrained model of methods that start there, and all iterations.

    The final rewards, if no method has iterations.
    """
    trained = {each.method for each in measured if each.iteration}
    agents = {(method, each.base) for method in trained for each in suite.recipes[method].agents.values()}
    apart = {method for method, base in agents if base == "untrained"}
    return [each for each in measured if each.iteration or each.method in {START, *apart}] or final(measured)


def curve(points: Sequence[Point], method: str) -> list[Point]:
    """The points of a method's curve in a panel, SFT's before them if it has no iteration 0; empty without points."""
    of_method = [point for point in points if point.method == method]
    shared = [point for point in points if point.method == START]
    return [*shared, *of_method] if of_method and all(point.iteration for point in of_method) else of_method


def draw(data: Curves, labels: ReportLabels) -> Figure:
    """The figure: a panel per environment and split; the methods' points are slightly shifted horizontally."""
    by_split = stats.group_by(data.points, "env", "split")
    figure, panels = drawing.panels("Figure 3: average reward per iteration", len(by_split), share_y=True)
    for axes, ((env, split), points) in zip(panels, by_split.items(), strict=True):
        drawing.label(axes, labels.split(env, split), "iteration", "average reward x 100")
        axes.locator_params(axis="x", integer=True)
        for position, method in enumerate(data.labels):
            shift = 0.05 * (position - (len(data.labels) - 1) / 2)  # so that intervals do not overlap
            _draw_curve(axes, curve(points, method), data.labels[method], labels.colour(method), shift)
    drawing.legend(figure)
    return figure


def _point(m: Measurement, report: ReportConfig) -> Point:
    estimate = estimation.of_records(m.records, report=report)
    return Point(method=m.method, env=m.env, split=m.split, iteration=m.iteration, estimate=estimate, sources=m.sources)


def _beginning(points: Sequence[Point], labels: Mapping[str, str]) -> str:
    """A description of iteration 0, for the caption."""
    trained, measured = {p.method for p in points if p.iteration}, {p.method for p in points if not p.iteration}
    if not trained:
        return "no method here has iterations"
    apart = [label for method, label in labels.items() if method in trained & measured]
    texts = ["iteration 0 is SFT"] if START in measured else []
    texts += [f"iteration 0 of {', '.join(apart)} is the model before training"] if apart else []
    return "; ".join(texts) or "iteration 0, SFT, is not shown"


def _draw_curve(axes: Axes, points: Sequence[Point], name: str, colour: int, shift: float) -> None:
    estimates = [(point.iteration, point.estimate.times(100)) for point in points]
    values = (f"{x}: {with_interval(each.mean, each.low, each.high, readable)}" for x, each in estimates)
    seeds = {
        seed: [(x + shift, each.seed_means[seed]) for x, each in estimates if seed in each.seed_means]
        for seed in {seed for _, each in estimates for seed in each.seed_means}
    }
    means = [(x + shift, each.mean) for x, each in estimates]
    drawing.curves(axes, name, colour, means, seeds, "o-", f"{name}: {'; '.join(values)}")
    for (x, _), (_, each) in zip(means, estimates, strict=True):
        axes.vlines(x, each.low, each.high, color=drawing.series_colour(colour), alpha=0.5)
