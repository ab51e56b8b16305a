"""The first screen of the report page: what was run, what came out, and the figure of differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from coevolve.records.tables import Estimate
from coevolve.report import drawing, estimation
from coevolve.report.differences import Difference
from coevolve.report.labels import ReportLabels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The method that the figure compares with the others, and the one of these that the sentence names.
METHOD, BASELINE = "coevolve", "eto"


def introduction(models: Sequence[str], envs: Sequence[str], seeds: int, paper_model: str, *, miniature: bool) -> str:
    """What a suite is, in one sentence: labels of its models and environments, number of seeds, and what it is not."""
    text = f"{'; '.join(models)} on {', '.join(envs)}, {seeds} seed{'s' * (seeds > 1)}"
    if not paper_model or paper_model in models:
        return f"{text}."
    return f"{text}{': a miniature' * miniature}, no statement about {paper_model}."


def compared(differences: Sequence[Difference]) -> list[Difference]:
    """Each environment's differences of one method to all others: co-evolving, or the last one of the suite."""
    names = {name for each in differences for name in (each.than, each.better)}
    method = METHOD if METHOD in names else differences[-1].better if differences else ""
    return [
        each if each.better == method else Difference(env=each.env, better=method, than=each.better, estimate=turned)
        for each in differences
        if method in (each.better, each.than)
        for turned in [negative(each.estimate)]
    ]


def negative(estimate: Estimate) -> Estimate:
    """The estimate of the negative quantity."""
    means = {seed: -mean for seed, mean in estimate.seed_means.items()}
    changed = {"mean": -estimate.mean, "low": -estimate.high, "high": -estimate.low, "seed_means": means}
    return estimate.model_copy(update=changed)


def outcome(shown: Sequence[Difference], labels: ReportLabels, confidence: float) -> str:
    """What came out and whether it is decided, of differences as `compared` returns them; empty without any."""
    if not shown:
        return ""
    than = BASELINE if any(each.than == BASELINE for each in shown) else shown[0].than
    named = [each for each in shown if each.than == than]
    words = ["decided" if estimation.decided(each.estimate, confidence) else "undecided" for each in named]
    of_envs = [
        f"{points(each.estimate)} on {labels.env(each.env)} ({word})" for each, word in zip(named, words, strict=True)
    ]
    few = any(each.estimate.n_seeds < estimation.MIN_SEEDS for each in shown)
    return (
        f"{labels.method(shown[0].better)} minus {labels.method(than)}, points of average reward x 100: "
        f"{', '.join(of_envs)}.{f' Fewer than {estimation.MIN_SEEDS} seeds decide nothing.' * few}"
    )


def points(estimate: Estimate) -> str:
    """A difference of rewards in points, with its interval: `+4.1 [1.9, 6.4]`."""
    return "{:+.1f} [{:.1f}, {:.1f}]".format(*(100 * x for x in (estimate.mean, estimate.low, estimate.high)))


def rows(shown: Sequence[Difference], labels: ReportLabels) -> Iterator[tuple[str, Estimate]]:
    """The rows of the figure: the other method, with the environment where there are several."""
    several = len({each.env for each in shown}) > 1
    for each in shown:
        of_env = f", {labels.env(each.env)}" if several else ""
        yield f"{labels.method(each.than)}{of_env}   {points(each.estimate)}", each.estimate


def draw(title: str, name: str, named: Sequence[tuple[str, Estimate | None]], confidence: float) -> Figure:
    """Differences with their intervals, filled where one is decided; a row without an estimate is a heading.

    `name` stands above the rows, `title` is the figure's for readers who do not see it.
    """
    figure, (axes,) = drawing.panels(title, 1, columns=1)
    figure.set_size_inches(8, 0.3 * len(named) + 0.8)
    colour = drawing.series_colour(0)
    for y, (_, estimate) in enumerate(named):
        if estimate is not None:
            mean, low, high = (100 * each for each in (estimate.mean, estimate.low, estimate.high))
            filled = estimation.decided(estimate, confidence)
            axes.plot([low, high], [y, y], color=colour, linewidth=2)
            axes.plot(mean, y, "o", color=colour, markerfacecolor=colour if filled else "#ffffff")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set(yticks=range(len(named)), yticklabels=[text for text, _ in named], ylim=(len(named) - 0.5, -0.5))
    for text, (_, estimate) in zip(axes.get_yticklabels(), named, strict=True):
        text.set_fontweight("bold" if estimate is None else "normal")
    drawing.label(axes, name, "points of average reward x 100, with 95 % intervals")
    return figure
