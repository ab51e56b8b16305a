"""Differences between methods, paired by task and seed, with their intervals."""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple, Self

from tabulate import tabulate

from coevolve import seeds
from coevolve.config.sections import ReportConfig
from coevolve.errors import UserError
from coevolve.records.base import Record
from coevolve.records.tables import Estimate
from coevolve.report import stats
from coevolve.report.labels import ReportLabels
from coevolve.report.measurement import Measurement
from coevolve.report.number_text import with_interval
from coevolve.report.stats import RewardTable


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
    rng = seeds.generator(0, "differences", env, later.method, earlier.method)
    sides = later.over(earlier.rewards.seeds), earlier.over(later.rewards.seeds)
    try:
        estimate = stats.difference(*sides, report, rng)
    except UserError as error:
        raise UserError(f"`{later.method}` minus `{earlier.method}` on {env}: {error}") from None
    return Difference(env=env, better=later.method, than=earlier.method, estimate=estimate)


def markdown(differences: Sequence[Difference], labels: ReportLabels) -> str:
    """A table of differences x 100 with their intervals over tasks and trainings, paired by task and seed."""
    rows = [
        [
            labels.env(d.env),
            f"{labels.method(d.better)} - {labels.method(d.than)}",
            with_interval(100 * d.estimate.mean, 100 * d.estimate.low, 100 * d.estimate.high),
            d.estimate.n_tasks,
            d.estimate.n_seeds,
        ]
        for d in differences
    ]
    head = ["environment", "difference", "average reward x 100", "tasks", "seeds"]
    return f"## Differences, paired by task and seed\n\n{tabulate(rows, head, tablefmt='github')}\n"
