"""Differences between methods, paired by task and seed, with their intervals."""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple, Self

from tabulate import tabulate

from coevolve.config.report import ReportConfig
from coevolve.errors import UserError
from coevolve.records.base import Record
from coevolve.records.tables import Estimate
from coevolve.report import estimation, robustness
from coevolve.report.estimation import RewardTable
from coevolve.report.figure3 import Point
from coevolve.report.labels import ReportLabels
from coevolve.report.measurement import Measurement
from coevolve.report.number_text import with_interval
from coevolve.report.robustness import Collapses

NOTE = (
    "A difference is decided if its interval excludes 0, also without any one of four or more seeds. Exact p: of the "
    "signs of six or more seeds; it assumes no distribution. Conditional: without the seeds in which a training of "
    "either method collapsed, a statement about the other trainings."
)
COLLAPSED = (
    "Trainings whose policy loses {} points or more against the policy that they start from, with Clopper and "
    "Pearson's interval. Intervals of differences are too narrow where trainings collapse."
)


class Difference(Record):
    """Average reward of `better` minus that of `than` on one environment, all splits together, in [-1, 1]."""

    env: str
    better: str
    than: str
    estimate: Estimate


def paired(final: Sequence[Measurement], report: ReportConfig) -> list[Difference]:
    """Differences of every two methods, the later row minus the earlier one, paired by task and seed.

    A row of one policy is compared with every seed of the other row. Raises `UserError` if two rows share no task.
    """
    rows: dict[str, dict[str, list[Measurement]]] = {}
    for measurement in final:
        rows.setdefault(measurement.env, {}).setdefault(measurement.method, []).append(measurement)
    return [
        _difference(env, later, earlier, report)
        for env, methods in rows.items()
        for earlier, later in combinations([_Row.of(name, row) for name, row in methods.items()], 2)
    ]


class _Row(NamedTuple):
    """The rewards of a method on one environment."""

    method: str
    rewards: RewardTable
    single_policy: bool

    @classmethod
    def of(cls, method: str, row: Sequence[Measurement]) -> Self:
        """The row of these measurements, of all splits."""
        rewards = RewardTable.of(record for measurement in row for record in measurement.records)
        return cls(method, rewards, all(measurement.single_policy for measurement in row))

    def over(self, seeds: Sequence[int]) -> RewardTable:
        """The rewards; those of one policy are repeated, and counted, for each of these seeds of the other row."""
        return self.rewards.repeated(seeds) if self.single_policy else self.rewards


def _difference(env: str, later: _Row, earlier: _Row, report: ReportConfig) -> Difference:
    sides = later.over(earlier.rewards.seeds), earlier.over(later.rewards.seeds)
    try:
        estimate = estimation.difference(*sides, report)
    except UserError as error:
        raise UserError(f"`{later.method}` minus `{earlier.method}` on {env}: {error}") from None
    return Difference(env=env, better=later.method, than=earlier.method, estimate=estimate)


def markdown(
    differences: Sequence[Difference],
    points: Sequence[Point],
    labels: ReportLabels,
    report: ReportConfig,
    remark: str = "",
) -> str:
    """A table of differences x 100, and one of trainings that collapsed; `points` are those of Figure 3."""
    trainings = robustness.collapses(points, report.collapse)
    lost = robustness.collapsed_seeds(trainings)
    rows = []
    for d in differences:
        collapsed = {seed for row in (d.better, d.than) for seed in lost.get((d.env, row), ())}
        rest = robustness.conditional(d.estimate, collapsed, report.confidence)
        rows.append([
            labels.env(d.env),
            f"{labels.method(d.better)} - {labels.method(d.than)}",
            with_interval(100 * d.estimate.mean, 100 * d.estimate.low, 100 * d.estimate.high),
            d.estimate.n_tasks,
            d.estimate.n_seeds,
            "decided" if estimation.decided(d.estimate, report.confidence) else "undecided",
            "" if (p := robustness.sign_flip_p([*d.estimate.seed_means.values()])) is None else f"{p:.3f}",
            with_interval(100 * rest[0], 100 * rest[1], 100 * rest[2]) if rest else "",
        ])  # fmt: skip
    head = ["environment", "difference", "average reward x 100", "tasks", "seeds", "verdict", "exact p", "conditional"]
    parts = ["## Differences, paired by task and seed", *filter(None, [remark]), NOTE, tabulate(rows, head, "github")]
    if trainings:
        explained = COLLAPSED.format(f"{100 * report.collapse:g}")
        parts += ["## Collapsed trainings", explained, _trainings(trainings, labels)]
    return "\n\n".join(parts) + "\n"


def _trainings(trainings: Sequence[Collapses], labels: ReportLabels) -> str:
    """The trainings by method and iteration, with the share that collapsed."""
    rows = []
    for each in trainings:
        low, high = each.interval()
        name, seeds = f"{labels.method(each.method)}, {each.iteration}", ", ".join(map(str, each.collapsed))
        row = [labels.env(each.env), name, len(each.collapsed), len(each.seeds), f"{low:.0%} to {high:.0%}", seeds]
        rows.append(row)
    head = ["environment", "method, iteration", "collapsed", "of", "share, 95 %", "seeds"]
    return tabulate(rows, head, tablefmt="github")
