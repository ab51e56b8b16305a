"""The figure of the mechanism: hard negatives, gradients by pair kind, and log-probs over the trainings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

from coevolve.report import drawing
from coevolve.report.analysis import Drift, GoldDrift
from coevolve.report.exploration import AgentRecord
from coevolve.report.labels import ReportLabels, kind_label
from coevolve.report.mechanism import GradientShare, HardNegatives
from coevolve.types import PairKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

R = TypeVar("R", bound=AgentRecord)
_TITLES = ("hard negatives", "share of gradient", "log-prob of experts", "log-prob of own episodes")
#: The agent's own episodes: the rejected sides of these pairs.
_KIND = PairKind.EXPERT_TARGET.value


class FigureData(BaseModel):
    """The parts of `analysis.json` that the figure shows; older files lack some."""

    hard_negatives: tuple[HardNegatives, ...] = ()
    gradients: tuple[GradientShare, ...] = ()
    gold: tuple[GoldDrift, ...] = ()
    drift: tuple[Drift, ...] = ()

    @classmethod
    def read(cls, path: Path) -> FigureData:
        """The values in `analysis.json`."""
        return cls.model_validate_json(path.read_bytes())

    @property
    def target_gradients(self) -> list[GradientShare]:
        """Those of the target's trainings at the policy that they start from."""
        return [row for row in self.gradients if (row.agent, row.policy) == ("target", "start")]

    @property
    def target_gold(self) -> list[GoldDrift]:
        """Those of the target's trainings, where they are known before the training too."""
        return [row for row in self.gold if row.agent == "target" and row.before is not None]

    @property
    def target_episodes(self) -> list[Drift]:
        """Log-probs of the target's own episodes, rejected, in its trainings."""
        return [row for row in self.drift if (row.agent, row.kind) == ("target", _KIND)]


def draw(data: FigureData, labels: ReportLabels) -> Figure:
    """The figure: a row of panels per environment; numbers are means over the seeds. Panels without values say so.

    Hard negatives: dashed lines are the failure agent's. Gradients: shares of eq. 9 at the policy that the target's
    trainings start from, means over iterations too. Log-probs, in nats a trajectory: a line for each of the target's
    trainings.
    """
    figure = drawing.new_figure(15.0, 3.3 * len(labels.envs))
    rows = figure.subplots(len(labels.envs), len(_TITLES), squeeze=False)
    for panels, (env, label) in zip(rows, labels.envs.items(), strict=True):
        _draw_hard_negatives(panels[0], _of(data.hard_negatives, env), labels)
        _draw_gradients(panels[1], _of(data.target_gradients, env), labels)
        _draw_trainings(panels[2], [(row, row.before or 0.0, row.after) for row in _of(data.target_gold, env)], labels)
        rejected = [(row, row.rejected_first, row.rejected_last) for row in _of(data.target_episodes, env)]
        _draw_trainings(panels[3], rejected, labels)
        for axes, title in zip(panels, _TITLES, strict=True):
            axes.set_title(f"{label}: {title}", fontsize="medium")
            if axes.get_legend_handles_labels()[0]:
                axes.legend(fontsize="x-small")
            else:
                axes.set_axis_off()
                axes.text(0.5, 0.5, "not measured", ha="center")
    return figure


def _draw_hard_negatives(axes: Axes, rows: Sequence[HardNegatives], labels: ReportLabels) -> None:
    """The share of explorations by iteration, a line for each method and agent."""
    for method, agent in dict.fromkeys((row.method, row.agent) for row in rows):
        shares = _by_iteration((row, row.of_episodes) for row in rows if (row.method, row.agent) == (method, agent))
        style, name = ("o-", labels.method(method)) if agent == "target" else ("o--", None)
        axes.plot(*zip(*shares, strict=True), style, color=f"C{labels.colour(method)}", label=name)
    ticks = sorted({row.iteration for row in rows})
    axes.set(xlabel="iteration", ylabel="share of explorations", ylim=(0, None), xticks=ticks)


def _draw_gradients(axes: Axes, rows: Sequence[GradientShare], labels: ReportLabels) -> None:
    """A bar for each method, with a part for each pair kind."""
    for position, method in enumerate(dict.fromkeys(row.method for row in rows)):
        of_method = [row for row in rows if row.method == method]
        trainings, left = len({(row.seed, row.iteration) for row in of_method}), 0.0
        for colour, kind in enumerate(PairKind):
            width = sum(row.share or 0.0 for row in of_method if row.kind == kind) / trainings
            axes.barh(position, width, left=left, color=f"C{colour}", label="" if position else kind_label(kind))
            left += width
        axes.text(0.02, position, labels.method(method), va="center", fontsize="x-small")
    axes.set(yticks=[], xlim=(0, 1))


def _draw_trainings(axes: Axes, rows: Sequence[tuple[R, float, float]], labels: ReportLabels) -> None:
    """A line for each training of a method, from the value before it to that after it."""
    for method in dict.fromkeys(row.method for row, *_ in rows):
        of_method = [each for each in rows if each[0].method == method]
        before = _by_iteration((row, value) for row, value, _ in of_method)
        after = _by_iteration((row, value) for row, _, value in of_method)
        for (iteration, start), (_, end) in zip(before, after, strict=True):
            name = labels.method(method) if iteration == before[0][0] else None
            axes.plot([iteration - 1, iteration], [start, end], "o-", color=f"C{labels.colour(method)}", label=name)
    axes.set(xlabel="iteration", ylabel="nats a trajectory")
    axes.locator_params(axis="x", integer=True)


def _by_iteration(rows: Iterable[tuple[AgentRecord, float]]) -> list[tuple[int, float]]:
    """(iteration, mean over the seeds)."""
    values: defaultdict[int, list[float]] = defaultdict(list)
    for row, value in rows:
        values[row.iteration].append(value)
    return [(iteration, fmean(of_iteration)) for iteration, of_iteration in sorted(values.items())]


def _of(rows: Iterable[R], env: str) -> list[R]:
    return [row for row in rows if row.env == env]
