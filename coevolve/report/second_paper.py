"""The second paper's success rates beside this suite's, with tests of the paper's own differences."""

from collections.abc import Sequence
from dataclasses import dataclass

from tabulate import tabulate

from coevolve.config.report import ReportConfig
from coevolve.config.suite import Suite
from coevolve.report import estimation, flaws, measurement, stats
from coevolve.report.claims import Claims, SuccessColumn, SuccessRow, SuccessTable
from coevolve.report.measurement import Measurement
from coevolve.report.number_text import readable, with_interval

LEVEL = 0.05


@dataclass(frozen=True)
class CellDifference:
    """A row against the row that the paper compares it with, in points, in one column; `p` of the two shares."""

    row: str
    against: str
    column: str
    points: float
    p: float


def differences(table: SuccessTable) -> list[CellDifference]:
    """Every comparison that the table states, by the two-proportion z-test on the paper's own counts."""
    return [
        _difference(name, row, other, column, spec.tasks)
        for name, row in table.rows.items()
        if row.against and (other := table.rows[row.against])
        for column, spec in table.columns.items()
        if column in row.cells and column in other.cells
    ]


def _difference(name: str, row: SuccessRow, other: SuccessRow, column: str, tasks: int) -> CellDifference:
    a, b = (round(each.cells[column] * tasks / 100) for each in (row, other))
    p = stats.two_sided_p(a / tasks - b / tasks, stats.pooled_error(a, tasks, b, tasks))
    return CellDifference(name, row.against, column, row.cells[column] - other.cells[column], p)


def sentence(table: SuccessTable) -> str:
    """What the tests of the paper's own numbers show, uncorrected."""
    tested = differences(table)
    if not tested:
        return "It compares none of its rows."
    small = [each for each in tested if each.p < LEVEL]
    span = f"p {min(each.p for each in tested):.2f} to {max(each.p for each in tested):.2f}"
    how = "two-proportion z-test, one greedy pass a row, no seeds"
    if not small:
        return f"No single difference of these {len(tested)} is significant at 5 % ({span}; {how})."
    names = ", ".join(f"{each.row} on {each.column}" for each in small)
    return f"{len(small)} of {len(tested)} differences are significant at 5 %: {names} ({span}; {how})."


def tables(claims: Claims, suite: Suite, measured: Sequence[Measurement]) -> list[str]:
    """The tables of which the suite has a row that the paper compares with another one."""
    return [
        markdown(table, measured, suite.report)
        for table in claims.success_tables.values()
        if {row.method for row in table.rows.values() if row.against and row.method} & {*suite.methods}
    ]


def markdown(table: SuccessTable, measured: Sequence[Measurement], report: ReportConfig) -> str:
    """The table: the paper's rate with Wilson's interval, the test against the row compared with, and ours."""
    tested, last = {(each.row, each.column): each for each in differences(table)}, measurement.final(measured)
    head = ["row", "column", "the paper, %", "against", "here, %"]
    rows = [
        [row.label, spec.label, _paper(row, column, spec), _test(table, tested.get((name, column))), ours]
        for name, row in table.rows.items()
        for column, spec in table.columns.items()
        if column in row.cells
        for ours in [_ours(row, spec, last, report)]
    ]
    grid = tabulate(rows, headers=head, tablefmt="github", disable_numparse=True)
    notes = [f"* {spec.label}: {spec.unavailable}" for spec in table.columns.values() if spec.unavailable]
    notes += [f"* {row.label}: {row.remark}" for row in table.rows.values() if row.remark]
    notes += [f"* {remark}" for remark in table.remarks]
    named = (
        (f"{row.label}, {spec.label}", measured.records)
        for row in table.rows.values()
        for column, spec in table.columns.items()
        if column in row.cells
        for measured in _of_cell(row, spec, last)
    )
    notes += [f"* {text}" for text in [flaws.remark(named)] if text]
    return "\n".join([f"## {table.label}", "", f"{table.source}. {sentence(table)}", "", grid, "", *notes, ""])


def _paper(row: SuccessRow, column: str, spec: SuccessColumn) -> str:
    low, high = stats.wilson(round(row.cells[column] * spec.tasks / 100), spec.tasks)
    return f"{with_interval(row.cells[column], 100 * low, 100 * high)} ({row.status})"


def _test(table: SuccessTable, difference: CellDifference | None) -> str:
    if difference is None:
        return ""
    return f"{table.rows[difference.against].label}: {difference.points:+.1f}, p {readable(difference.p)}"


def _ours(row: SuccessRow, spec: SuccessColumn, last: Sequence[Measurement], report: ReportConfig) -> str:
    """Our success rate with the interval over tasks and seeds, and the model it is of."""
    if spec.unavailable:
        return "not available"
    return "; ".join(_rate(m, report) for m in _of_cell(row, spec, last)) or "not run"


def _of_cell(row: SuccessRow, spec: SuccessColumn, last: Sequence[Measurement]) -> list[Measurement]:
    return [m for m in last if m.records and (m.method, m.env, m.split) == (row.method, spec.env, spec.split)]


def _rate(measured: Measurement, report: ReportConfig) -> str:
    rate = estimation.success_rate(measured.records, report).times(100.0)
    successes = sum(record.success for record in measured.records)
    several = "s" * (rate.n_seeds > 1)
    run = f"{successes} of {rate.n}, {rate.n_seeds} seed{several}, {measured.model}, {measured.suite}"
    return f"{with_interval(rate.mean, rate.low, rate.high)} ({run}) {measured.note}".rstrip()
