"""The report: the products of a suite as one HTML file that needs no other file."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from markdown_it import MarkdownIt

from coevolve.report import view
from coevolve.report.claims import Claims
from coevolve.report.table import Footnote, Table
from coevolve.report.why import splits, tables
from coevolve.types import Cell, Provenance

PAGE = Path(__file__).with_name("report.html")
#: Where the suite's view lies, seen from the report.
VIEW = "../../view/index.html"
_IMAGES = {".svg": "image/svg+xml", ".png": "image/png"}


def report(paths: Sequence[Path], title: str, claims: Claims, jobs: Iterable[Provenance], view_page: str = VIEW) -> str:
    """The page: verdicts, tables, figures, all other Markdown of `paths`, and the provenance of `jobs`.

    Verdicts are those of `verdicts.json`, a list of `{"claim", "verdict", "text"}`; without it they have no section.
    Equal files give equal text. `view_page` is the address of the suite's view, relative to the report.
    """
    ordered = sorted(paths, key=lambda path: path.name)
    sections = [
        _section("Verdicts", _rows_of(ordered)),
        *_tables(ordered, claims, view_page),
        *_figures(ordered),
        *_texts(ordered),
        _section("Provenance", _provenance(list(jobs))),
    ]
    shell = Template(PAGE.read_text(encoding="utf-8"))
    return shell.substitute(title=escape(title), view=escape(view_page), body="\n".join(filter(None, sections)))


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{content}" if content else ""


def _rows_of(paths: Sequence[Path]) -> str:
    """The flat objects of `verdicts.json` as a table; nothing if there is no such file."""
    for path in (path for path in paths if path.name == "verdicts.json"):
        rows: list[Mapping[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        head = list(dict.fromkeys(key for row in rows for key in row))
        return _grid(map(escape, head), ([escape(_plain(row.get(key))) for key in head] for row in rows))
    return ""


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)


def _tables(paths: Sequence[Path], claims: Claims, view_page: str) -> Iterator[str]:
    for path in (path for path in paths if path.suffix == ".json"):
        for number, table in enumerate(tables(path)):
            yield _section(f"{path.stem}, {table.unit}", _table(table, claims, view_page, f"{path.stem}-{number}"))


def _table(table: Table, claims: Claims, page: str, place: str) -> str:
    cells = {
        (cell.row, cell.column): _cell(cell, table.footnotes, _link(cell, claims, page), place) for cell in table.cells
    }
    rows = ([escape(label), *(cells[row, column] for column in table.columns)] for row, label in table.rows.items())
    notes = "".join(
        f'<li id="{place}-{escape(note.mark)}" class="quiet">Note {escape(note.mark)}: {escape(note.text)}</li>\n'
        for note in table.footnotes
    )
    caption = f'<p class="quiet">{escape(table.caption)}</p>'
    return f"{caption}\n{_grid(['', *map(escape, table.columns.values())], rows)}\n<ul>\n{notes}</ul>"


def _link(cell: Cell, claims: Claims, page: str) -> str:
    """The address of a cell's episodes; in the view one looks at one split or at all."""
    of_column = splits(cell.column, claims)
    return view.link(page, cell.sources, of_column.pop() if len(of_column) == 1 else "")


def _cell(cell: Cell, footnotes: Sequence[Footnote], link: str, place: str) -> str:
    """What was measured, linked to its episodes; below it the paper's value with its notes."""
    estimate = cell.estimate
    measured = '<span class="quiet">not run</span>'
    if estimate:
        interval = f'<span class="quiet">[{estimate.low:.1f}, {estimate.high:.1f}]</span>'
        measured = f'<a href="{escape(link)}">{estimate.mean:.1f}</a> {interval}'
    if cell.paper is None:
        return measured
    marks = [note.mark for note in footnotes if (cell.row, cell.column) in note.cells]
    notes = "".join(f' <a href="#{place}-{escape(mark)}">{escape(mark)}</a>' for mark in marks)
    return f'{measured}<br><span class="quiet">paper {cell.paper:.1f}{notes}</span>'


def _figures(paths: Sequence[Path]) -> Iterator[str]:
    """Every figure once, as SVG where there is one, with the caption of the data in its folder."""
    images = {path.with_suffix(""): path for kind in (".png", ".svg") for path in paths if path.suffix == kind}
    for path in images.values():
        content = base64.b64encode(path.read_bytes()).decode()
        caption = _caption(path.with_suffix(".json"))
        image = f'<img src="data:{_IMAGES[path.suffix]};base64,{content}" alt="{escape(path.stem)}">'
        yield _section(path.stem, f'{image}\n<p class="quiet">{escape(caption)}</p>')


def _caption(path: Path) -> str:
    data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return str(data.get("caption", "")) if isinstance(data, dict) else ""


def _texts(paths: Sequence[Path]) -> Iterator[str]:
    """Markdown that is not shown above as a table."""
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    shown = {path.stem for path in paths if path.suffix == ".json" and any(True for _ in tables(path))} | {"verdicts"}
    for path in (path for path in paths if path.suffix == ".md" and path.stem not in shown):
        yield f'<div class="wide">\n{renderer.render(path.read_text(encoding="utf-8"))}</div>'


def _provenance(jobs: Sequence[Provenance]) -> str:
    """What all results behind the report share, and in how many of them where they differ."""
    counts = {name: Counter(_values(name, each) for each in jobs) for name in ("commit", "container", "protocol")}
    seeds = sorted({each.seeds["suite"] for each in jobs if "suite" in each.seeds})
    entries = {
        **{name: _differing(counted) for name, counted in counts.items()},
        "seeds": ", ".join(map(str, seeds)),
        "environments": "; ".join(sorted({name for each in jobs for name in each.notes.get("environments", [])})),
        "versions": _differing(Counter(_versions(each) for each in jobs)),
        "results": ", ".join(f"{count} {stage}" for stage, count in sorted(Counter(p.stage for p in jobs).items())),
    }
    shown = (f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in entries.items() if value)
    return f"<dl>{''.join(shown)}</dl>" if jobs else ""


def _values(name: str, provenance: Provenance) -> str:
    if name == "commit":
        return f"{provenance.commit or 'unknown'}{' with uncommitted changes' if provenance.dirty else ''}"
    return str(getattr(provenance, name)) or "none"


def _versions(provenance: Provenance) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(provenance.versions.items()))


def _differing(counts: Mapping[str, int]) -> str:
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{value} ({count} results)" for value, count in sorted(counts.items()))


def _grid(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of cells that are HTML already; the first of each row is its heading."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "\n".join(f"<tr>{''.join(_cells(row))}</tr>" for row in rows)
    return f'<div class="wide"><table>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _cells(row: Iterable[str]) -> Iterator[str]:
    for place, cell in enumerate(row):
        yield f'<th scope="row">{cell}</th>' if place == 0 else f"<td>{cell}</td>"
