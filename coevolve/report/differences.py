"""Differences between methods, paired by task and seed, with their intervals."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from tabulate import tabulate

from coevolve import seeds
from coevolve.config.sections import ReportConfig
from coevolve.errors import UserError
from coevolve.records.base import Record
from coevolve.records.evaluation import EvalRecord
from coevolve.records.tables import Estimate
from coevolve.report import stats
from coevolve.report.labels import ReportLabels
from coevolve.report.measurement import Measurement
from coevolve.report.number_text import with_interval


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
        _difference(env, methods, later, earlier, report)
        for env, methods in rows.items()
        for earlier, later in combinations(methods, 2)
    ]


def _difference(
    env: str, methods: Mapping[str, Sequence[Measurement]], later: str, earlier: str, report: ReportConfig
) -> Difference:
    try:
        estimate = stats.difference(
            _over_seeds(methods[later], methods[earlier]),
            _over_seeds(methods[earlier], methods[later]),
            report,
            seeds.generator(0, "differences", env, later, earlier),
        )
    except UserError as error:
        raise UserError(f"`{later}` minus `{earlier}` on {env}: {error}") from None
    return Difference(env=env, better=later, than=earlier, estimate=estimate)


def _over_seeds(row: Sequence[Measurement], other: Sequence[Measurement]) -> list[EvalRecord]:
    """The records of a row; those of one policy are repeated, and counted, for every seed of the other row."""
    others = sorted({record.seed for measurement in other for record in measurement.records})
    return [
        record.model_copy(update={"seed": seed})
        for measurement in row
        for record in measurement.records
        for seed in (others if measurement.single_policy else [record.seed])
    ]


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
