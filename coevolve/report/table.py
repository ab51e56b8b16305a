"""A table of measured cells beside the paper's, and its renderings: Markdown, LaTeX and (as a record) JSON."""

from collections.abc import Sequence
from pathlib import Path

from tabulate import LATEX_ESCAPE_RULES, tabulate

from coevolve.records.base import Record
from coevolve.records.tables import Cell, Estimate
from coevolve.report.number_text import with_interval
from coevolve.settings.protocol import Protocol
from coevolve.storage import files

#: How a caption says that the paper's cell stands in brackets; HTML has it on a line of its own.
IN_BRACKETS = "In brackets the paper's cell"


class Footnote(Record):
    """A remark, and the (row, column) cells that point to it; none: it concerns the whole table."""

    mark: str
    text: str
    cells: tuple[tuple[str, str], ...]


class Table(Record):
    """Cells by row and column key; `rows` and `columns` give order and labels. All values are in `unit`."""

    caption: str
    unit: str
    suite: str
    model: str
    protocol: Protocol
    rows: dict[str, str]
    columns: dict[str, str]
    cells: tuple[Cell, ...]
    footnotes: tuple[Footnote, ...] = ()


def markdown(table: Table) -> str:
    """Caption, table and notes in GitHub's Markdown."""
    grid = tabulate(_body(table), headers=["", *table.columns.values()], tablefmt="github", disable_numparse=True)
    notes = "".join(f"* {_note(footnote)}\n" for footnote in table.footnotes)
    return f"{table.caption}\n\n{grid}\n" + (f"\n{notes}" if notes else "")


def latex(table: Table) -> str:
    """A `table` environment as wide as the text; needs the packages booktabs and graphicx."""
    grid = tabulate(
        _body(table), headers=["", *table.columns.values()], tablefmt="latex_booktabs", disable_numparse=True
    )
    notes = "".join(f"\\par {_escape(_note(footnote))}\n" for footnote in table.footnotes)
    caption = f"\\caption{{{_escape(table.caption)}}}"
    return f"\\begin{{table}}\n{caption}\n\\resizebox{{\\textwidth}}{{!}}{{%\n{grid}}}\n{notes}\\end{{table}}\n"


def write(tables: Sequence[Table], out: Path, name: str) -> None:
    """Write tables as Markdown, LaTeX and JSON."""
    files.write_bytes(out / f"{name}.md", "\n".join(markdown(table) for table in tables).encode())
    files.write_bytes(out / f"{name}.tex", "\n".join(latex(table) for table in tables).encode())
    files.write_json(out / f"{name}.json", [table.model_dump(mode="json") for table in tables])


def measured_cells(tables: Sequence[Table]) -> int:
    """The number of cells with an estimate."""
    return sum(cell.estimate is not None for table in tables for cell in table.cells)


def _body(table: Table) -> list[list[str]]:
    cells = {(cell.row, cell.column): cell for cell in table.cells}
    return [
        [label, *(_text(cells[row, column], table.footnotes) for column in table.columns)]
        for row, label in table.rows.items()
    ]


def _text(cell: Cell, footnotes: tuple[Footnote, ...]) -> str:
    """Such as `52.3 [48.1, 56.0] (paper 66.3, note a)`, or `not run`."""
    estimate = cell.estimate
    measured = "not run" if estimate is None else estimate_text(estimate)
    if cell.paper is None:
        return measured
    marks = [footnote.mark for footnote in footnotes if (cell.row, cell.column) in footnote.cells]
    return f"{measured} ({', '.join([f'paper {cell.paper:.1f}', *(f'note {mark}' for mark in marks)])})"


def estimate_text(estimate: Estimate) -> str:
    """Such as `52.3 [48.1, 56.0]`; of zeros alone, which have no interval, `0.0 on each of 48 tasks`."""
    if estimate.mean == estimate.low == estimate.high == 0:
        return f"0.0 on each of {estimate.n_tasks:,} tasks"
    return with_interval(estimate.mean, estimate.low, estimate.high)


def _note(footnote: Footnote) -> str:
    return f"Note {footnote.mark}: {footnote.text}"


def _escape(text: str) -> str:
    return "".join(LATEX_ESCAPE_RULES.get(character, character) for character in text)
