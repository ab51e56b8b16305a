"""The figure of the mechanism: hard negatives, gradients by pair kind, and log-probs before and after trainings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from coevolve.config.names import PairKind
from coevolve.report import drawing, stats
from coevolve.report.analysis import Analysis, TrajectoryDrift
from coevolve.report.exploration import AgentRecord
from coevolve.report.labels import ReportLabels, kind_label
from coevolve.report.mechanism import GradientShare, HardNegatives

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Greys of the pair kinds: colours are those of methods.
_KIND_COLOURS = {kind: f"{0.2 + 0.65 * number / (len(PairKind) - 1):.2f}" for number, kind in enumerate(PairKind)}


def panels(
    data: Analysis,
) -> list[tuple[str, Callable[[Axes, Any, ReportLabels], None], Sequence[AgentRecord]]]:
    """Title, drawing function and records of each panel that has any."""
    gradients = [row for row in data.gradients if (row.agent, row.policy) == ("target", "start")]
    gold, explored = (
        [row for row in rows if row.agent == "target" and row.before is not None] for rows in (data.gold, data.explored)
    )
    every = (
        ("hard negatives", _draw_hard_negatives, data.hard_negatives),
        ("share of gradient", _draw_gradients, gradients),
        ("log-prob of experts", _draw_trainings, gold),
        ("log-prob of own episodes", _draw_trainings, explored),
    )
    return [panel for panel in every if panel[-1]]


def draw(data: Analysis, labels: ReportLabels) -> Figure:
    """The figure: a row of panels per environment; numbers are means over the seeds.

    Hard negatives: dashed lines are the failure agent's. Gradients: shares of eq. 9 at the policy that the target's
    trainings start from, means over iterations too. Log-probs in nats a trajectory, of experts and of the target's
    episodes that experts are preferred to: a line for each of the target's trainings, with a dot at its end. Each
    training has a sample of its own pairs, so compare the directions of lines, not their heights.
    """
    shown = panels(data)
    figure = drawing.new_figure(3.75 * max(1, len(shown)), 3.3 * len(labels.envs))
    rows = figure.subplots(len(labels.envs), max(1, len(shown)), squeeze=False)
    for axes_of_row, (env, label) in zip(rows, labels.envs.items(), strict=True):
        for axes, (title, draw_panel, records) in zip(axes_of_row, shown, strict=False):
            axes.set_title(f"{label}: {title}", fontsize="medium")
            if of_env := [row for row in records if row.env == env]:
                draw_panel(axes, of_env, labels)
            else:
                _write(axes, "not measured")
        if not shown:
            _write(axes_of_row[0], f"{label}: nothing was measured")
    drawing.legend_below(figure, columns=6)
    return figure


def _write(axes: Axes, text: str) -> None:
    """A panel with a text only."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center")


def _draw_hard_negatives(axes: Axes, rows: Sequence[HardNegatives], labels: ReportLabels) -> None:
    """The share of explorations by iteration, a line for each method and agent."""
    for (method, agent), of_agent in stats.group_by(rows, "method", "agent").items():
        shares = stats.mean_curve((row.iteration, row.of_episodes) for row in of_agent)
        style, name = ("o-", labels.method(method)) if agent == "target" else ("o--", None)
        axes.plot(*zip(*shares, strict=True), style, color=f"C{labels.colour(method)}", label=name)
    if any(row.agent == "failure" for row in rows):
        axes.plot([], [], "k--", label="failure agent")
    ticks = sorted({row.iteration for row in rows})
    axes.set(xlabel="iteration", ylabel="share of explorations", ylim=(0, None), xticks=ticks)


def _draw_gradients(axes: Axes, rows: Sequence[GradientShare], labels: ReportLabels) -> None:
    """A bar for each method, with a part for each pair kind."""
    by_method = stats.group_by(rows, "method")
    kinds = [kind for kind in PairKind if any(row.kind == kind for row in rows)]
    for position, of_method in enumerate(by_method.values()):
        trainings, left = len({(row.seed, row.iteration) for row in of_method}), 0.0
        for kind in kinds:
            width = sum(row.share or 0.0 for row in of_method if row.kind == kind) / trainings
            name = "" if position else kind_label(kind)
            axes.barh(position, width, left=left, color=_KIND_COLOURS[kind], label=name)
            left += width
    names = [labels.method(method) for (method,) in by_method]
    axes.set(xlim=(0, 1), yticks=range(len(names)), yticklabels=names)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), fontsize="x-small", frameon=False, ncols=3)


def _draw_trainings(axes: Axes, rows: Sequence[TrajectoryDrift], labels: ReportLabels) -> None:
    """A line for each training of a method, from the value before it to that after it."""
    for (method,), of_method in stats.group_by(rows, "method").items():
        before = stats.mean_curve((row.iteration, row.before or 0.0) for row in of_method)
        after = stats.mean_curve((row.iteration, row.after) for row in of_method)
        for (iteration, start), (_, end) in zip(before, after, strict=True):
            name = labels.method(method) if iteration == before[0][0] else None
            colour = f"C{labels.colour(method)}"
            axes.plot([iteration - 1, iteration], [start, end], "o-", markevery=[1], color=colour, label=name)
    axes.set(xlabel="iteration", ylabel="nats a trajectory")
    axes.locator_params(axis="x", integer=True)
