"""The figures of failures: histograms of their rewards, and the mechanism that the trainings on them have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from coevolve.records.pairs import PairKind
from coevolve.report import drawing, stats
from coevolve.report.analysis import Analysis, FailureRewards, TrajectoryDrift
from coevolve.report.exploration import AgentRecord
from coevolve.report.labels import ReportLabels, kind_label
from coevolve.report.mechanism import GradientShare, HardNegatives
from coevolve.report.number_text import readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_KINDS = [kind.value for kind in PairKind]
#: Title, records and drawing function of a panel.
Panel = tuple[str, Sequence[AgentRecord], Callable[["Axes", Any, ReportLabels], None]]


def draw_rewards(rewards: Sequence[FailureRewards], labels: ReportLabels) -> Figure:
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


def draw_mechanism(data: Analysis, labels: ReportLabels) -> Figure:
    """The figure: panels of each environment that was measured; numbers are means over the seeds.

    Hard negatives: dashed lines are the failure agent's. Gradients: shares of eq. 9 at the policy that the target's
    trainings start from, means over iterations too, then by iteration. Log-probs in nats a trajectory, of experts and
    of the target's episodes that experts are preferred to: a line for each of the target's trainings, with a dot at its
    end. Each training has a sample of its own pairs, so compare the directions of lines, not their heights.
    """
    charts = [
        (f"{label}: {title}", of_env, draw_panel)
        for env, label in labels.envs.items()
        for title, rows, draw_panel in panels(data, labels)
        if (of_env := [row for row in rows if row.env == env])
    ]
    figure, every = drawing.panels("Mechanism", len(charts), columns=4)
    for axes, (title, rows, draw_panel) in zip(every, charts, strict=True):
        drawing.label(axes, title)
        draw_panel(axes, rows, labels)
    drawing.legend(figure)
    return figure


def panels(data: Analysis, labels: ReportLabels) -> Iterator[Panel]:
    """The panels of an environment, measured or not."""
    gold, explored = (
        [row for row in rows if row.agent == "target" and row.before is not None] for rows in (data.gold, data.explored)
    )
    gradients = [row for row in data.gradients if (row.agent, row.policy) == ("target", "start")]
    yield "hard negatives", data.hard_negatives, _draw_hard_negatives
    yield "share of gradient", gradients, _draw_gradients
    yield "log-prob of experts", gold, _draw_trainings
    yield "log-prob of own episodes", explored, _draw_trainings
    of_kinds: tuple[tuple[Sequence[AgentRecord], str, str], ...] = (
        (data.off_policy, "rejected sides, nats", "rejected"),
        (data.kind_weights, "share of weight", "share"),
        (gradients, "share of gradient", "share"),
    )
    for rows, quantity, field in of_kinds:
        for (method, agent), of_agent in stats.group_by(rows, "method", "agent").items():
            title = f"{labels.method(method)}, {agent} agent: {quantity}"
            if field == "share" and len(stats.group_by(of_agent, "kind")) < 2:
                continue  # its share is 1
            yield title, of_agent, partial(_draw_kinds, quantity=quantity, field=field)


def _draw_hard_negatives(axes: Axes, rows: Sequence[HardNegatives], labels: ReportLabels) -> None:
    """The share of explorations by iteration, a line for each method and agent."""
    for (method, agent), of_agent in stats.group_by(rows, "method", "agent").items():
        shares = stats.mean_curve((row.iteration, row.of_episodes) for row in of_agent)
        style, name = ("o-", labels.method(method)) if agent == "target" else ("o--", None)
        drawing.line(axes, f"{labels.method(method)}, {agent} agent", labels.colour(method), shares, style, label=name)
    if any(row.agent == "failure" for row in rows):
        axes.plot([], [], "k--", label="failure agent")
    ticks = sorted({row.iteration for row in rows})
    axes.set(xlabel="iteration", ylabel="share of explorations", ylim=(0, 1), xticks=ticks)


def _draw_gradients(axes: Axes, rows: Sequence[GradientShare], labels: ReportLabels) -> None:
    """A bar for each method, with a part for each pair kind."""
    by_method = stats.group_by(rows, "method")
    for position, of_method in enumerate(by_method.values()):
        trainings, left = len({(row.seed, row.iteration) for row in of_method}), 0.0
        for kind in (kind for kind in _KINDS if any(row.kind == kind for row in rows)):
            width = sum(row.share or 0.0 for row in of_method if row.kind == kind) / trainings
            (part,) = axes.barh(
                position, width, left=left, color=drawing.series_colour(_colour(kind)), label=kind_label(kind)
            )
            drawing.explain(part, f"{kind_label(kind)}: {readable(width)}")
            left += width
    names = [labels.method(method) for (method,) in by_method]
    axes.set(xlim=(0, 1), yticks=range(len(names)), yticklabels=names)


def _draw_trainings(axes: Axes, rows: Sequence[TrajectoryDrift], labels: ReportLabels) -> None:
    """A line for each training of a method, from the value before it to that after it."""
    for (method,), of_method in stats.group_by(rows, "method").items():
        before = stats.mean_curve((row.iteration, row.before or 0.0) for row in of_method)
        after = stats.mean_curve((row.iteration, row.after) for row in of_method)
        for (iteration, start), (_, end) in zip(before, after, strict=True):
            name = labels.method(method)
            ends, tip = [(iteration - 1, start), (iteration, end)], f"{name}: {readable(start)} to {readable(end)}"
            drawing.line(axes, tip, labels.colour(method), ends, "o-", markevery=[1], label=name)
    axes.set(xlabel="iteration", ylabel="nats a trajectory")
    axes.locator_params(axis="x", integer=True)


def _draw_kinds(axes: Axes, rows: Sequence[Any], labels: ReportLabels, quantity: str, field: str) -> None:
    """A field by iteration, a line for each pair kind."""
    for (kind,), of_kind in stats.group_by(rows, "kind").items():
        values = [(row.iteration, getattr(row, field)) for row in of_kind]
        points = stats.mean_curve((iteration, value) for iteration, value in values if value is not None)
        drawing.curves(axes, kind_label(kind), _colour(kind), points, {}, "o-")
    axes.set(xlabel="iteration", ylabel=quantity, **({"ylim": (0, 1)} if field == "share" else {}))
    axes.locator_params(axis="x", integer=True)


def _colour(kind: str) -> int:
    """The number of a pair kind's colour: the last ones, as methods have the first."""
    return len(drawing.SERIES) - 1 - _KINDS.index(kind)
