"""The charts of the report page about the mechanism, from `analysis.json`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from coevolve.report import stats
from coevolve.report.charts import Curve, legend, line_chart
from coevolve.report.exploration import AgentRecord
from coevolve.report.labels import ReportLabels, kind_label
from coevolve.report.mechanism import GradientShare, HardNegatives, KindWeight, Mechanism, OffPolicy
from coevolve.report.page_figures import PageChart, PageFigure
from coevolve.types import PairKind

R = TypeVar("R", bound=AgentRecord)
_KINDS = [kind.value for kind in PairKind]
_GRADIENTS = (
    " Share of gradient: norm of eq. 9's gradient over a kind's pairs, of the sum of these norms over kinds, at the "
    "policy that the target's training starts from. analysis.md has the cosines between kinds."
)


def mechanism_figure(path: Path, labels: ReportLabels) -> PageFigure:
    """Hard negatives, off-policy distance, weights and gradients of pair kinds by iteration, means over seeds."""
    measured = Mechanism.read(path)
    of_targets = [row for row in measured.gradients if (row.agent, row.policy) == ("target", "start")]
    folded = {}
    for env, label in labels.envs.items():
        charts = [
            *_hard_negatives([row for row in measured.hard_negatives if row.env == env], labels),
            *_by_kind(
                [row for row in measured.off_policy if row.env == env], "rejected sides, nats", _rejected, labels
            ),
            *_by_kind([row for row in measured.kind_weights if row.env == env], "share of weight", _share, labels),
            *_by_kind([row for row in of_targets if row.env == env], "share of gradient", _share, labels),
        ]
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
            _means(of_agent, lambda row: row.of_episodes),
            "mean" if agent == "target" else "mean dashed",
            markers=True,
        )
        for (method, agent), of_agent in _groups(rows, lambda row: (row.method, row.agent)).items()
    ]
    if curves:
        yield PageChart("Hard negatives", line_chart("Hard negatives", curves, "iteration", "share of explorations"))
        names = [(curve.name, curve.colour, curve.style) for curve in curves]
        yield PageChart("", legend(names))


def _by_kind(
    rows: Sequence[R], quantity: str, value: Callable[[R], float | None], labels: ReportLabels
) -> Iterator[PageChart]:
    """A chart for each method and agent, a curve for each pair kind."""
    for (method, agent), of_agent in _groups(rows, lambda row: (row.method, row.agent)).items():
        curves = [
            Curve(kind_label(kind), _KINDS.index(kind), points, markers=True)
            for (kind,), of_kind in _groups(of_agent, _kind).items()
            if (points := _means(of_kind, value))
        ]
        title = f"{labels.method(method)}, {agent} agent: {quantity}"
        if curves:
            yield PageChart(title, line_chart(title, curves, "iteration", quantity))


def _groups(rows: Iterable[R], key: Callable[[R], tuple[str, ...]]) -> dict[tuple[str, ...], list[R]]:
    groups: defaultdict[tuple[str, ...], list[R]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def _means(rows: Sequence[R], value: Callable[[R], float | None]) -> list[tuple[float, float]]:
    """(iteration, mean over the seeds that have a value)."""
    return stats.mean_curve((row.iteration, number) for row in rows if (number := value(row)) is not None)


def _kind(row: AgentRecord) -> tuple[str, ...]:
    assert isinstance(row, OffPolicy | KindWeight | GradientShare), "only these records are about a pair kind"
    return (row.kind,)


def _rejected(row: OffPolicy) -> float:
    return row.rejected


def _share(row: KindWeight | GradientShare) -> float | None:
    return row.share
