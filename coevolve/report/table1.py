"""Table 1: average reward by method, environment and split beside the paper's cells; success rate is a table apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from string import ascii_lowercase

from coevolve import seeds
from coevolve.config.sections import ReportConfig
from coevolve.errors import UserError
from coevolve.records.tables import Cell, Estimate
from coevolve.report import stats
from coevolve.report.claims import Claims
from coevolve.report.labels import ReportLabels
from coevolve.report.measurement import Measurement, common_setting, remarks
from coevolve.report.table import Footnote, Table

#: Row and column of a cell.
Key = tuple[str, str]
Labels = dict[str, str]
#: Units of the two tables.
REWARD, SUCCESS = "average reward x 100", "success rate in per cent"


def reward_table(
    measurements: Sequence[Measurement],
    claims: Claims,
    labels: Mapping[str, str],
    report: ReportConfig,
    environments: Collection[str] | None = None,
) -> Table:
    """Average reward x 100 of every measured method and of every row of the paper, run or not.

    A mean is that of the paper's columns, and only where all of them were measured. `labels` name the methods and the
    columns (`named`) that the paper's table lacks. `environments`: those of the paper's columns (None: all); a row of
    the paper without a cell in them is left out. Raises `UserError` for nothing measured, for mixed settings and for a
    cell measured twice.
    """
    measured = _by_cell(measurements, claims)
    columns = _columns(measured, claims, labels, environments)
    return _reward_table(measured, claims, _rows(measured, claims, columns, labels), columns, report)


def measured_table(
    measurements: Sequence[Measurement], claims: Claims, labels: Mapping[str, str], report: ReportConfig
) -> Table:
    """`reward_table` of the rows and columns that have a measured cell, with the notes on these. Raises likewise."""
    measured = _by_cell(measurements, claims)
    columns = _columns(measured, claims, labels)
    rows = _rows(measured, claims, columns, labels)
    run = [key for key in product(rows, columns) if _parts(*key, measured, claims)]
    rows = {row: rows[row] for row, _ in run}
    columns = {column: label for column, label in columns.items() if any(column == of_cell for _, of_cell in run)}
    return _reward_table(measured, claims, rows, columns, report)


def named(labels: ReportLabels, measurements: Sequence[Measurement]) -> dict[str, str]:
    """The labels of all methods, and of the columns of splits that the paper's table lacks."""
    return {**labels.methods, **{_split_column(m.env, m.split): labels.split(m.env, m.split) for m in measurements}}


def _split_column(env: str, split: str) -> str:
    """The key of the column of a split that the paper's table lacks, such as `sciworld development`."""
    return f"{env} {split}"


def success_table(
    measurements: Sequence[Measurement], claims: Claims, labels: Mapping[str, str], report: ReportConfig
) -> Table:
    """Success rate in per cent of what was measured, in the same order; the paper prints none. Raises likewise."""
    measured = _by_cell(measurements, claims)
    run, where = {row for row, _ in measured}, {column for _, column in measured}
    columns = {column: label for column, label in _columns(measured, claims, labels).items() if column in where}
    rows = {row: label for row, label in _rows(measured, claims, columns, labels).items() if row in run}
    remark = (
        f"Success as protocol {measurements[0].protocol} counts it; the paper prints none. "
        "At 0 and 100 the interval is Wilson's over tasks."
    )
    return _table(SUCCESS, measured, claims, rows, columns, {}, remark, report)


def _by_cell(measurements: Sequence[Measurement], claims: Claims) -> dict[Key, Measurement]:
    """Measurements by row and column; a split that the paper's table lacks is a column of its own."""
    common_setting(measurements)  # raises for nothing measured and for mixed settings
    column_of = {(column.env, column.split): key for key, column in claims.columns.items()}
    cells: dict[Key, Measurement] = {}
    for measurement in measurements:
        evaluation = measurement.env, measurement.split
        key = measurement.method, column_of.get(evaluation, _split_column(*evaluation))
        if key in cells:
            raise UserError(
                f"{measurement.method} on {' '.join(evaluation)} was given twice; give one iteration per method."
            )
        cells[key] = measurement
    return cells


def _rows(measured: Mapping[Key, Measurement], claims: Claims, columns: Labels, labels: Mapping[str, str]) -> Labels:
    """The paper's rows with a cell in `columns`, then the other methods that were measured."""
    of_paper = {
        row: spec.label
        for row, spec in claims.rows.items()
        if any((row, column) in measured or claims.value(row, column) is not None for column in columns)
    }
    return of_paper | {row: labels[row] for row, _ in measured if row not in claims.rows}


def _columns(
    measured: Mapping[Key, Measurement],
    claims: Claims,
    labels: Mapping[str, str],
    environments: Collection[str] | None = None,
) -> Labels:
    """The paper's columns of `environments`, with their mean where these are all, then the other splits measured."""
    known = {spec.env for spec in claims.columns.values() if spec.env is not None}
    kept = known if environments is None else known & set(environments)
    of_paper = {
        key: spec.label
        for key, spec in claims.columns.items()
        if (kept == known if spec.env is None else spec.env in kept)
    }
    return of_paper | {column: labels.get(column, column) for _, column in measured if column not in claims.columns}


def _reward_table(
    measured: Mapping[Key, Measurement], claims: Claims, rows: Labels, columns: Labels, report: ReportConfig
) -> Table:
    paper = {key: claims.value(*key) for key in product(rows, columns)}
    remark = f"In brackets the paper's cell ({claims.source})." if {*paper.values()} - {None} else ""
    return _table(REWARD, measured, claims, rows, columns, paper, remark, report)


def _table(
    unit: str,
    measured: Mapping[Key, Measurement],
    claims: Claims,
    rows: Labels,
    columns: Labels,
    paper: Mapping[Key, float | None],
    remark: str,
    report: ReportConfig,
) -> Table:
    """The table of these rows and columns beside the numbers of the `paper`; `remark` stands in the caption."""
    measurements = list(measured.values())
    setting = common_setting(measurements)
    cells = []
    for key in product(rows, columns):
        parts = _parts(*key, measured, claims)
        cell = Cell(
            row=key[0],
            column=key[1],
            estimate=_estimate(unit, parts, report, key) if parts else None,
            paper=paper.get(key),
            protocol=setting.protocol,
            sources=tuple(source for part in parts for source in part.sources),
        )
        cells.append(cell)
    interval = f"{100 * report.confidence:g} % interval over tasks and, where there are several, trainings"
    texts = [f"{unit.capitalize()} with its {interval}.", remark, remarks(measurements), setting.sentence()]
    return Table(
        caption=f"{' '.join(filter(None, texts))} Tasks x seeds: {_sizes(rows, columns, cells)}.",
        unit=unit,
        **vars(setting),
        rows=rows,
        columns=columns,
        cells=tuple(cells),
        footnotes=_footnotes(claims, paper),
    )


def _parts(row: str, column: str, measured: Mapping[Key, Measurement], claims: Claims) -> list[Measurement]:
    """The measurements in a cell: one, in the mean column one of each of the paper's columns, or none."""
    columns = claims.parts(column) if column in claims.columns else [column]
    parts = [measured[row, part] for part in columns if (row, part) in measured]
    return parts if len(parts) == len(columns) else []


def _estimate(unit: str, parts: Sequence[Measurement], report: ReportConfig, key: Key) -> Estimate:
    """The mean of the parts' means, x 100. Each cell has its own generator: a new row changes no other."""
    rng = seeds.generator(0, "table1", *key)
    if unit == SUCCESS:  # without a mean column
        return stats.success_rate(parts[0].records, report, rng).times(100.0)
    return stats.macro_average([part.records for part in parts], report, rng).times(100.0)


def _sizes(rows: Labels, columns: Labels, cells: Sequence[Cell]) -> str:
    """Such as `WebShop 200 x 3; InterCodeSQL 200 x 3 (SFT, ETO), 200 x 1 (RFT)`."""
    sizes: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        if cell.estimate is not None:
            sizes[columns[cell.column]][f"{cell.estimate.n_tasks} x {cell.estimate.n_seeds}"].append(rows[cell.row])
    return "; ".join(f"{column} {_of_rows(of_column)}" for column, of_column in sizes.items())


def _of_rows(sizes: Mapping[str, Sequence[str]]) -> str:
    if len(sizes) == 1:
        return next(iter(sizes))
    return ", ".join(f"{size} ({', '.join(rows)})" for size, rows in sizes.items())


def _footnotes(claims: Claims, cells: Collection[Key]) -> tuple[Footnote, ...]:
    """The remarks on these cells of the paper's table, and on the whole table if one of the cells is the paper's."""
    if all(claims.value(*key) is None for key in cells):
        return ()
    concerned = [(fact, [(row, key) for row, keys in fact.cells.items() for key in keys]) for fact in claims.facts]
    kept = [(fact, keys) for fact, keys in concerned if not keys or not set(keys).isdisjoint(cells)]
    return tuple(
        Footnote(mark=mark, text=f"{fact.text} ({fact.place})", cells=tuple(keys))
        for mark, (fact, keys) in zip(ascii_lowercase, kept, strict=False)
    )
