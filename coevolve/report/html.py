"""The report: the products of a suite as one HTML file that needs no other file."""

from __future__ import annotations

import base64
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from pydantic import BaseModel

from coevolve.report import verdicts, view
from coevolve.report.claims import Claims
from coevolve.report.why import splits, tables
from coevolve.types import Cell, EpisodeNotes, Provenance

TEMPLATE = Path(__file__).with_name("report.html")
#: Address of the suite's view, relative to the report.
VIEW = "../../view/index.html"
_CHANGES = {True: " with uncommitted changes", False: "", None: " (uncommitted changes unknown)"}
_IMAGES = {".svg": "image/svg+xml", ".png": "image/png"}


class _FigureData(BaseModel):
    """The caption of a figure; the rest of its data is in the image."""

    caption: str = ""


def report(paths: Sequence[Path], title: str, claims: Claims, jobs: Iterable[Provenance], view_page: str = VIEW) -> str:
    """The page: verdicts, tables, figures, all other Markdown of `paths`, and the provenance of `jobs`.

    Without `verdicts.json` there is no section of verdicts. Equal files give equal text. `view_page` is the address of
    the suite's view, relative to the report.
    """
    ordered = sorted(paths, key=lambda path: path.name)
    judged = [verdict for path in ordered if path.name == "verdicts.json" for verdict in verdicts.read(path)]
    environment = Environment(
        loader=FileSystemLoader(TEMPLATE.parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    return environment.get_template(TEMPLATE.name).render(
        title=title,
        view=view_page,
        verdicts=[verdict.model_dump() for verdict in judged],
        tables=[
            {"name": path.stem, "id": f"{path.stem}-{number}", "table": verdicts.noted(table, judged)}
            for path in ordered
            if path.suffix == ".json"
            for number, table in enumerate(tables(path))
        ],
        link=functools.partial(_link, claims, view_page),
        figures=list(_figures(ordered)),
        texts=list(_texts(ordered)),
        provenance=_provenance(list(jobs)),
    )


def _link(claims: Claims, view_page: str, cell: Cell) -> str:
    """The address of a cell's episodes; the view shows one split or all."""
    of_column = splits(cell.column, claims)
    return view.link(view_page, cell.sources, of_column.pop() if len(of_column) == 1 else "")


def _figures(paths: Sequence[Path]) -> Iterator[dict[str, str]]:
    """Every figure once, as SVG where there is one, with the caption of the data in its folder."""
    images = {path.with_suffix(""): path for kind in (".png", ".svg") for path in paths if path.suffix == kind}
    for path in images.values():
        content = base64.b64encode(path.read_bytes()).decode()
        data = path.with_suffix(".json")
        caption = _FigureData.model_validate_json(data.read_bytes()).caption if data.exists() else ""
        yield {"name": path.stem, "source": f"data:{_IMAGES[path.suffix]};base64,{content}", "caption": caption}


def _texts(paths: Sequence[Path]) -> Iterator[str]:
    """Markdown that is not shown above as a table, as HTML. HTML within the Markdown is escaped."""
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    shown = {path.stem for path in paths if path.suffix == ".json" and any(True for _ in tables(path))} | {"verdicts"}
    for path in (path for path in paths if path.suffix == ".md" and path.stem not in shown):
        yield renderer.render(path.read_text(encoding="utf-8"))


def _provenance(jobs: Sequence[Provenance]) -> dict[str, str]:
    """Values that all results share, or the number of results with each value where they differ."""
    counts = {name: Counter(_value(name, job) for job in jobs) for name in ("commit", "container", "protocol")}
    seeds = sorted({job.seeds["suite"] for job in jobs if "suite" in job.seeds})
    played = [job.notes for job in jobs if isinstance(job.notes, EpisodeNotes)]
    return {
        **{name: _counted(values) for name, values in counts.items()},
        "seeds": ", ".join(map(str, seeds)),
        "environments": "; ".join(sorted({name for each in played for name in each.environments})),
        "versions": _counted(Counter(_versions(job) for job in jobs)),
        "results": ", ".join(f"{count} {stage}" for stage, count in sorted(Counter(job.stage for job in jobs).items())),
    }


def _value(name: str, provenance: Provenance) -> str:
    if name == "commit":
        return f"{provenance.commit or 'unknown'}{_CHANGES[provenance.dirty]}"
    return str(getattr(provenance, name)) or "none"


def _versions(provenance: Provenance) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(provenance.versions.items()))


def _counted(counts: Mapping[str, int]) -> str:
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{value} ({count} results)" for value, count in sorted(counts.items()))
