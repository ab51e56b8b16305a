"""Histograms of the rewards of failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coevolve.report import drawing, stats
from coevolve.report.analysis import FailureRewards
from coevolve.report.labels import ReportLabels
from coevolve.report.number_text import readable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(rewards: Sequence[FailureRewards], labels: ReportLabels) -> Figure:
    """The figure: failures by reward in equal bins of [0, 1), a panel for each agent and iteration, seeds summed."""
    groups = stats.group_by(rewards, "env", "method", "agent", "iteration")
    ordered = sorted(groups.items(), key=lambda item: ([*labels.envs].index(item[0][0]), labels.order(*item[0][1:])))
    figure, panels = drawing.panels("Rewards of failures", len(ordered), columns=4, share_y=True)
    for axes, ((env, method, agent, iteration), rows) in zip(panels, ordered, strict=True):
        title = f"{labels.env(env)}: {labels.method(method)}, {agent} agent, iteration {iteration}"
        drawing.label(axes, title, "reward", "failures")
        counts = [sum(column) for column in zip(*(row.counts for row in rows), strict=True)]
        ends = [number / len(counts) for number in range(len(counts))]
        width, colour = 0.9 / len(counts), drawing.series_colour(labels.colour(method))
        for low, count, patch in zip(
            ends, counts, axes.bar(ends, counts, width, align="edge", color=colour), strict=True
        ):
            drawing.explain(patch, f"{readable(low)} to {readable(low + 1 / len(counts))}: {readable(count)}")
        axes.set_xlim(0, 1)
    return figure
