"""The charts of the report page about the mechanism, from `analysis.json`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from coevolve.config.names import PairKind
from coevolve.report.charts import Curve, legend, line_chart
from coevolve.report.exploration import AgentRecord
from coevolve.report.labels import ReportLabels, kind_label
from coevolve.report.mechanism import HardNegatives, Mechanism
from coevolve.report.page_figures import PageChart, PageFigure
from coevolve.report.stats import group_by, mean_curve

_KINDS = [kind.value for kind in PairKind]
_GRADIENTS = (
    " Share of gradient: norm of eq. 9's gradient over a kind's pairs, of the sum of these norms over kinds, at the "
    "policy that the target's training starts from. analysis.md has the cosines between kinds."
)


def mechanism_charts(path: Path, labels: ReportLabels) -> PageFigure:
    """Hard negatives, off-policy distance, weights and gradients of pair kinds by iteration, means over seeds."""
    measured = Mechanism.read(path)
    of_targets = [row for row in measured.gradients if (row.agent, row.policy) == ("target", "start")]
    of_kinds: tuple[tuple[Sequence[AgentRecord], str, str], ...] = (
        (measured.off_policy, "rejected sides, nats", "rejected"),
        (measured.kind_weights, "share of weight", "share"),
        (of_targets, "share of gradient", "share"),
    )
    folded = {}
    for env, label in labels.envs.items():
        charts = list(_hard_negatives([row for row in measured.hard_negatives if row.env == env], labels))
        for rows, quantity, field in of_kinds:
            charts += _by_kind([row for row in rows if row.env == env], quantity, field, labels)
        if charts:
            folded[label] = charts
    used = {row.kind for row in measured.off_policy} | {row.kind for row in measured.kind_weights}
    kinds = [(kind_label(kind), number, "mean") for number, kind in enumerate(_KINDS) if kind in used]
    return PageFigure(
        "Mechanism",
        "By iteration, means over seeds. Hard negatives: share of an agent's explorations (dashed: the failure agent). "
        "Rejected sides: log-prob of an action token under the reference policy, by pair kind. Share of weight: "
        "lambda_DPO * beta * sigma(-margin) over a kind's pairs, which is no share of the gradient."
        + (_GRADIENTS if of_targets else ""),
        ["analysis.json", "mechanism.svg", "mechanism.png"],
        [PageChart("", legend(kinds))] if kinds else [],
        folded,
    )


def _hard_negatives(rows: Sequence[HardNegatives], labels: ReportLabels) -> Iterator[PageChart]:
    curves = [
        Curve(
            f"{labels.method(method)}, {agent} agent",
            labels.colour(method),
            _means(of_agent, "of_episodes"),
            "mean" if agent == "target" else "mean dashed",
            markers=True,
        )
        for (method, agent), of_agent in group_by(rows, "method", "agent").items()
    ]
    if curves:
        yield PageChart("Hard negatives", line_chart("Hard negatives", curves, "iteration", "share of explorations"))
        names = [(curve.name, curve.colour, curve.style) for curve in curves]
        yield PageChart("", legend(names))


def _by_kind(rows: Sequence[AgentRecord], quantity: str, field: str, labels: ReportLabels) -> Iterator[PageChart]:
    """A chart of a field for each method and agent, with a curve for each pair kind."""
    for (method, agent), of_agent in group_by(rows, "method", "agent").items():
        curves = [
            Curve(kind_label(kind), _KINDS.index(kind), points, markers=True)
            for (kind,), of_kind in group_by(of_agent, "kind").items()
            if (points := _means(of_kind, field))
        ]
        title = f"{labels.method(method)}, {agent} agent: {quantity}"
        if curves:
            yield PageChart(title, line_chart(title, curves, "iteration", quantity))


def _means(rows: Sequence[AgentRecord], field: str) -> list[tuple[float, float]]:
    """(iteration, mean of a field over the seeds that have it)."""
    values: list[tuple[int, Any]] = [(row.iteration, getattr(row, field)) for row in rows]
    return mean_curve((iteration, value) for iteration, value in values if value is not None)
