"""Table 1: average reward by method, environment and split beside the paper's cells; success rate is a table apart."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from string import ascii_lowercase

from coevolve.config.report import ReportConfig
from coevolve.config.suite import Suite
from coevolve.records.episodes import StopReason
from coevolve.records.tables import Cell, Estimate
from coevolve.report import estimation, flaws, stats
from coevolve.report.claims import Claims
from coevolve.report.labels import ReportLabels
from coevolve.report.measurement import Measurement, common_setting, remarks
from coevolve.report.table import IN_BRACKETS, Footnote, Table

#: Row and column of a cell.
Key = tuple[str, str]
Labels = dict[str, str]
#: Units of the two tables.
REWARD, SUCCESS = "average reward x 100", "success rate in per cent"


@dataclass(frozen=True)
class MeasuredCells:
    """Measurements by row and column; a split that the paper's table lacks is a column of its own."""

    measured: Mapping[Key, Measurement]
    claims: Claims
    labels: ReportLabels
    report: ReportConfig

    @classmethod
    def of(
        cls, measurements: Sequence[Measurement], claims: Claims, labels: ReportLabels, report: ReportConfig
    ) -> MeasuredCells:
        """The cells of these measurements, each of another method or split; raises `UserError` as `common_setting`."""
        common_setting(measurements)
        column_of = {(column.env, column.split): key for key, column in claims.columns.items()}
        cells = {(m.method, column_of.get((m.env, m.split), f"{m.env} {m.split}")): m for m in measurements}
        return cls(cells, claims, labels, report)

    def reward_table(
        self, environments: Collection[str] | None = None, of_paper: bool = True, notes: Sequence[str] = ()
    ) -> Table:
        """Average reward x 100 of every measured method and of every row of the paper, run or not.

        A mean is that of the paper's columns, and only where all of them were measured. `environments`: those of the
        paper's columns (None: all); a row of the paper without a cell in them is left out. Without `of_paper` only rows
        and columns with a measured cell remain. `notes`: further remarks on the whole table.
        """
        columns = self.columns(environments)
        rows = self.rows(columns)
        if not of_paper:
            run = [key for key in product(rows, columns) if self.parts(*key)]
            rows, columns = _chosen(rows, {row for row, _ in run}), _chosen(columns, {column for _, column in run})
        paper = {key: self.claims.value(*key) for key in product(rows, columns)}
        remark = f"{IN_BRACKETS} ({self.claims.source})." if {*paper.values()} - {None} else ""
        table = self.table(REWARD, rows, columns, paper, remark)
        named = (
            (f"{rows[row]}, {columns[column]}", measured.records)
            for (row, column), measured in self.measured.items()
            if row in rows and column in columns
        )
        texts = [*notes, *filter(None, [flaws.remark(named)]), *self._lost()]
        marks = ascii_lowercase[len(table.footnotes) :]
        more = (Footnote(mark=mark, text=text, cells=()) for mark, text in zip(marks[: len(texts)], texts, strict=True))
        return table.model_copy(update={"footnotes": (*table.footnotes, *more)})

    def _lost(self) -> Iterator[str]:
        """A remark on episodes that errors of the environment ended; one without a record is known from other rows."""
        tasks: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for m in self.measured.values():
            for seed in {record.seed for record in m.records}:
                tasks[m.env, m.split] |= Counter(record.task_id for record in m.records if record.seed == seed)
        columns, lost = self.columns(), []
        rows = self.rows(columns)
        for (row, column), m in self.measured.items():
            total = tasks[m.env, m.split].total() * len({record.seed for record in m.records})
            if count := total - sum(record.stop is not StopReason.ENV_ERROR for record in m.records):
                lost.append(f"{rows[row]} on {columns[column]} {count} of {total}")
        if lost:
            yield f"Episodes lost to errors of the environment: {', '.join(lost)}."

    def success_table(self) -> Table:
        """Success rate in per cent of what was measured, in the same order; the paper prints none."""
        columns = _chosen(self.columns(), {column for _, column in self.measured})
        rows = _chosen(self.rows(columns), {row for row, _ in self.measured})
        (protocol,) = {m.protocol for m in self.measured.values()}
        remark = (
            f"Success as protocol {protocol} counts it; the paper prints none. "
            "At 0 and 100 the interval is Wilson's over tasks."
        )
        return self.table(SUCCESS, rows, columns, {}, remark)

    def rows(self, columns: Labels) -> Labels:
        """The paper's rows with a cell in `columns`, then the other methods that were measured."""
        of_paper = {
            row: spec.label
            for row, spec in self.claims.rows.items()
            if any((row, column) in self.measured or self.claims.value(row, column) is not None for column in columns)
        }
        return of_paper | {row: self.labels.method(row) for row, _ in self.measured if row not in self.claims.rows}

    def columns(self, environments: Collection[str] | None = None) -> Labels:
        """The paper's columns of `environments`, with their mean where these are all, then the other splits."""
        known = {spec.env for spec in self.claims.columns.values() if spec.env is not None}
        kept = known if environments is None else known & set(environments)
        of_paper = {
            key: spec.label
            for key, spec in self.claims.columns.items()
            if (kept == known if spec.env is None else spec.env in kept)
        }
        others = [(key, m) for (_, key), m in self.measured.items() if key not in self.claims.columns]
        return of_paper | {key: self.labels.split(m.env, m.split) for key, m in others}

    def parts(self, row: str, column: str) -> list[Measurement]:
        """The measurements in a cell: one, in the mean column one of each of the paper's columns, or none."""
        columns = self.claims.parts(column) if column in self.claims.columns else [column]
        parts = [self.measured[row, part] for part in columns if (row, part) in self.measured]
        return parts if len(parts) == len(columns) else []

    def table(self, unit: str, rows: Labels, columns: Labels, paper: Mapping[Key, float | None], remark: str) -> Table:
        """The table of these rows and columns beside the numbers of the `paper`; `remark` stands in the caption."""
        measurements = list(self.measured.values())
        setting = common_setting(measurements)
        cells = [
            Cell(
                row=key[0],
                column=key[1],
                estimate=self._estimate(unit, parts) if parts else None,
                paper=paper.get(key),
                protocol=setting.protocol,
                sources=tuple(source for part in parts for source in part.sources),
            )
            for key in product(rows, columns)
            for parts in [self.parts(*key)]
        ]
        interval = f"{100 * self.report.confidence:g} % interval over tasks and, where there are several, trainings"
        texts = [f"{unit.capitalize()} with its {interval}.", remark, remarks(measurements), setting.sentence()]
        return Table(
            caption=f"{' '.join(filter(None, texts))} Tasks x seeds: {_sizes(rows, columns, cells)}.",
            unit=unit,
            **vars(setting),
            rows=rows,
            columns=columns,
            cells=tuple(cells),
            footnotes=_footnotes(self.claims, paper),
        )

    def _estimate(self, unit: str, parts: Sequence[Measurement]) -> Estimate:
        """The mean of the parts' means, x 100."""
        if unit == SUCCESS:  # without a mean column
            return estimation.success_rate(parts[0].records, self.report).times(100.0)
        return estimation.of_records(*(part.records for part in parts), report=self.report).times(100.0)


def suite_notes(suite: Suite, measured: Iterable[Measurement]) -> Iterator[str]:
    """What a suite left out, environments in another version than the committed results', and rows without a model.

    Such a row is named by its source, which says how to make it.
    """
    if names := ", ".join(f"`{name}`" for name in suite.without):
        command = f"`snakemake --profile smoke --config suite={suite.suite}`"
        yield f"Left out: {names}. With what it needs here (`coevolve doctor`), {command} adds it."
    identities = {(each.env, record.environment) for each in measured for record in each.records}
    yield from sorted(filter(None, (suite.envs[env].other_version(identity) for env, identity in identities)))
    absent = [recipe for recipe in suite.recipes.values() if recipe.model and recipe.model not in suite.models]
    for (source,), rows in stats.group_by(absent, "source").items():
        yield f"Without a model in this suite: {', '.join(row.label for row in rows)} ({source})."


def _chosen(labels: Labels, keys: Collection[str]) -> Labels:
    return {key: label for key, label in labels.items() if key in keys}


def _sizes(rows: Labels, columns: Labels, cells: Sequence[Cell]) -> str:
    """Such as `WebShop 200 x 3; InterCodeSQL 200 x 3 (SFT, ETO), 200 x 1 (RFT)`."""
    sizes: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        if cell.estimate is not None:
            sizes[columns[cell.column]][f"{cell.estimate.n_tasks} x {cell.estimate.n_seeds}"].append(rows[cell.row])
    texts = {
        column: next(iter(by_size))
        if len(by_size) == 1
        else ", ".join(f"{size} ({', '.join(names)})" for size, names in by_size.items())
        for column, by_size in sizes.items()
    }
    return "; ".join(f"{column} {text}" for column, text in texts.items())


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
