"""The report: what was run, tables, figures and verdicts of a suite as one HTML file that needs no other file."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markdown_it import MarkdownIt
from pydantic import AliasPath, BaseModel, Field

from coevolve.config.restriction import as_dict
from coevolve.config.suite import Suite
from coevolve.records.evaluation import EpisodeNotes
from coevolve.records.provenance import Provenance
from coevolve.records.tables import Cell
from coevolve.records.training import TrainReport
from coevolve.report import drawing, first_screen, loop, regime, training_figure, verdicts, view
from coevolve.report.claims import Claims
from coevolve.report.differences import Difference
from coevolve.report.labels import ReportLabels, words
from coevolve.report.loop import Box
from coevolve.report.number_text import duration, readable
from coevolve.report.page_sections import FURTHER, SECTIONS, FigureSection
from coevolve.report.page_template import TEMPLATE
from coevolve.report.regime import RegimeCheck
from coevolve.report.table import IN_BRACKETS, Footnote, Table, estimate_text
from coevolve.report.verdicts import Verdict
from coevolve.report.why import splits, tables
from coevolve.storage import product_file

#: Address of the suite's view, relative to the report.
VIEW = "../../view/index.html"
_CHANGES = {True: " with uncommitted changes", False: "", None: " (uncommitted changes unknown)"}
#: Characters of a cell from which its table is one of sentences.
SENTENCE = 60
#: Titles of Markdown files, in the order of the page.
_TEXTS = {
    "summary": "Differences between methods, pairs and drops, in numbers",
    "analysis": "Failures, log-probs and compute, in numbers",
    "regime": "Regime: could this suite decide?",
    "costs": "Costs, in numbers",
    "examples": "Examples of failures",
    "growth": "Rounds, in numbers",
    "comparison": "The second paper's numbers, and these",
}
#: The view's list of a stage's episodes or pairs.
_LISTS = {
    "data": "episodes?part=experts",
    "rollout": "episodes?part=rollout",
    "pairs": "pairs?",
    "evaluate": "episodes?part=eval",
}
#: The sections of the page about the jobs of a stage, the best one first; the last of all is the provenance.
_SECTIONS = {
    "sft": ("training-curves",),
    "rollout": ("rewards-of-failures", "figure-2-failures"),
    "pairs": ("pairs-and-drops",),
    "train": ("training-curves",),
    "evaluate": ("learning-curves", "table1-0"),
}


class LabelledSection(BaseModel):
    """A model, environment or method of a suite: its label.

    `iterations` of a method that has its own number; `tiny`: the sizes of a model that is made from nothing.
    """

    label: str
    iterations: int | None = None
    tiny: dict[str, Any] | None = None


class RunSettings(BaseModel):
    """What was run: the part of a suite, or of the config in a product's provenance, that the page shows."""

    suite: str
    protocol: str
    models: dict[str, LabelledSection]
    envs: dict[str, LabelledSection]
    methods: tuple[str, ...]
    recipes: dict[str, LabelledSection]
    seeds: tuple[int, ...]
    iterations: dict[str, int]
    confidence: float = Field(0.95, validation_alias=AliasPath("report", "confidence"))

    @classmethod
    def of(cls, suite: Suite) -> RunSettings:
        """The settings of a suite, or of the sections of it that a product reads."""
        return cls.model_validate(as_dict(suite))

    @property
    def labels(self) -> ReportLabels:
        """The labels of the methods that were run and of the environments."""
        methods = {method: self.recipes[method].label for method in self.methods}
        return ReportLabels(methods, {env: section.label for env, section in self.envs.items()})


@dataclass(frozen=True)
class PageFiles:
    """The files of products that the page is made of, and the addresses of what it links to.

    `view` is the address of the suite's view, relative to the page; empty: numbers link to no episodes. `flat`: all
    files lie beside the page, and the jobs' provenance in the file `jobs`; otherwise each product has its folder.
    """

    paths: Sequence[Path]
    view: str = VIEW
    flat: bool = False
    jobs: str = ""

    def address(self, path: Path) -> str:
        """The address of a product's file, which is in `paper/PRODUCT` as the page, or in a folder beside `paper`."""
        if self.flat or path.name == training_figure.NAME:
            return path.name
        return f"{'..' if path.parent.parent.name == 'paper' else '../..'}/{path.parent.name}/{path.name}"


@dataclass(frozen=True)
class PageFigure:
    """A section with figures: SVG images, the texts below them, links (name, address); `shown` names the texts."""

    id: str
    title: str
    caption: str
    images: Sequence[str]
    texts: Sequence[Mapping[str, str]]
    shown: Sequence[str]
    data: Sequence[tuple[str, str]]


class TablePart(NamedTuple):
    """Rows of a table, with the columns and notes that are shown with them; one with a title is folded."""

    title: str
    rows: Mapping[str, str]
    columns: Mapping[str, str]
    notes: list[Footnote]


def report(page: PageFiles, run: RunSettings, claims: Claims, jobs: Mapping[str, Provenance]) -> str:
    """The page: what came out, tables, figures, verdicts, all other Markdown, and the provenance of `jobs`.

    A product without a file has no section. Equal files give equal text. Raises `UserError` for a damaged file.
    """
    files = {path.name: path for path in sorted(page.paths, key=lambda path: path.name)}
    judged = product_file.read(files["verdicts.json"], list[Verdict]) if "verdicts.json" in files else []
    compared = _compared(files)
    in_words = functools.partial(verdicts.in_words, claims=claims, labels=run.labels)
    shown = {
        f"{path.stem}-{number}": {
            "title": section_title(path.stem),
            "id": f"{path.stem}-{number}",
            **_shown(table),
            "data": page.address(path),
        }
        for path in files.values()
        if path.suffix == ".json"
        for number, table in enumerate(verdicts.noted(table, judged) for table in tables(path))
    }
    main, further = (list(_figures(files, jobs.values(), run.labels, page, part)) for part in (SECTIONS, FURTHER))
    figures = {figure.id: figure for figure in (*main, *further)}
    elsewhere = {name for figure in figures.values() for name in figure.shown}
    elsewhere |= {f"{name.rpartition('-')[0]}.md" for name in shown}
    others = Counter(job.stage for job in jobs.values() if loop.box_of(job) not in loop.LABELS)
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(TEMPLATE).render(
        title=f"Suite {run.suite}",
        view=page.view,
        lead=_lead(files, run, claims, judged, compared),
        differences=_differences(compared, run),
        run=_run(run, jobs.values()),
        picture=_loop(jobs, page.view, figures.keys() | shown.keys()),
        other_jobs=", ".join(f"{words(stage)} {count:,}" for stage, count in sorted(others.items())),
        tables=list(shown.values()),
        link=functools.partial(_link, claims, page.view),
        paper_model=claims.model,
        estimate_text=estimate_text,
        in_brackets=IN_BRACKETS,
        figures=main,
        further=further,
        texts=list(_texts(files, run.labels, page, elsewhere)),
        provenance=_provenance(jobs.values()),
        verdict_heads=verdicts.HEADS,
        verdict_text=f"{verdicts.summary(judged)} {verdicts.ALONE}",
        verdicts=verdicts.rows(judged, in_words),
        miniature=verdicts.rows(judged, in_words, miniature=True),
        miniature_text=f"{verdicts.miniature_summary(judged)} {verdicts.MINIATURE}",
        verdict_file=page.address(files["verdicts.json"]) if "verdicts.json" in files else "",
    )


def _lead(
    files: Mapping[str, Path],
    run: RunSettings,
    claims: Claims,
    judged: Sequence[Verdict],
    compared: Sequence[Difference],
) -> list[str]:
    """What was run, what came out, and whether the suite could decide: a sentence each, without those not known."""
    small = any(verdict.miniature for verdict in judged) or any(model.tiny for model in run.models.values())
    models, envs = ([section.label for section in part.values()] for part in (run.models, run.envs))
    intro = first_screen.introduction(models, envs, len(run.seeds), claims.model, miniature=small)
    came_out = first_screen.outcome(compared, run.labels, run.confidence)
    checked = _regime(files, run)
    return [text for text in (intro, came_out, checked and f"Could it decide? {checked}") if text]


def _compared(files: Mapping[str, Path]) -> list[Difference]:
    path = files.get("differences.json")
    return first_screen.compared(product_file.read(path, list[Difference])) if path else []


def _differences(compared: Sequence[Difference], run: RunSettings) -> str:
    """The figure of differences as SVG; empty without any."""
    if not compared:
        return ""
    method, named = run.labels.method(compared[0].better), list(first_screen.rows(compared, run.labels))
    title, name = f"{method} minus other rows", f"{method} minus ..."
    return _inline(drawing.svg(drawing.drawn(lambda: first_screen.draw(title, name, named, run.confidence))).decode())


def _inline(image: str) -> str:
    """An SVG file as an element of the page: without the declarations before it."""
    return image[image.index("<svg") :]


def _shown(table: Table) -> dict[str, Any]:
    """The rows that ran, with the columns that did; and the rows that did not, folded. Notes have letters in order."""
    ran = [(cell.row, cell.column) for cell in table.cells if cell.estimate]
    rows, columns = ({key[side] for key in ran} for side in (0, 1))
    parts = [TablePart("", _chosen(table.rows, rows), _chosen(table.columns, columns), [])]
    if left := _chosen(table.rows, table.rows.keys() - rows):
        parts.append(TablePart(f"Rows that were not run: {', '.join(left.values())}", left, table.columns, []))
    letters = iter(ascii_lowercase)
    lettered: dict[str, Footnote] = {}
    for part, note in itertools.product(parts, table.footnotes):
        if any(row in part.rows and column in part.columns for row, column in note.cells) or not (
            note.cells or part.title
        ):
            if note.mark not in lettered:
                lettered[note.mark] = note.model_copy(update={"mark": next(letters)})
            part.notes.append(lettered[note.mark])
    return {"table": table.model_copy(update={"footnotes": tuple(lettered.values())}), "parts": parts}


def _chosen(labels: Mapping[str, str], keys: Collection[str]) -> dict[str, str]:
    return {key: label for key, label in labels.items() if key in keys}


def _run(run: RunSettings, jobs: Collection[Provenance]) -> dict[str, str]:
    labels = run.labels
    iterations = {env: run.iterations[env] for env in run.envs}
    by_env = [f"{labels.env(env)} {count}" for env, count in iterations.items()]
    same = [str(*set(iterations.values()))] if len(set(iterations.values())) == 1 else by_env
    alone = [(method, run.recipes[method].iterations) for method in run.methods]
    others = [f"{labels.method(method)} {count}" for method, count in alone if count]
    seconds = sum(job.seconds for job in jobs)
    return {
        "Models": "; ".join(model.label for model in run.models.values()),
        "Environments": ", ".join(labels.envs.values()),
        "Methods": ", ".join(labels.methods.values()),
        "Seeds": ", ".join(map(str, run.seeds)),
        "Iterations": ", ".join(same + others),
        "Protocol": run.protocol,
        "Jobs": f"{len(jobs):,} in {duration(seconds / 3600)} of computing" if jobs else "",
    }


def _loop(jobs: Mapping[str, Provenance], view_page: str, sections: Collection[str]) -> str:
    """The loop with the number of jobs in each box and a link to their episodes or charts; empty without jobs."""
    whole = [loop.box_of(job) for job in jobs.values() if "whole" not in job.wildcards]
    counts = Counter(box for box in whole if box in loop.LABELS)
    if not counts:
        return ""
    texts = {box: f"{count:,} job{'s' * (count > 1)}" for box, count in counts.items()}
    links = {box: _loop_link(box, view_page, sections) for box in counts}
    return loop.svg(counts, set(loop.job_edges(jobs)), texts, links)


def _loop_link(box: Box, view_page: str, sections: Collection[str]) -> str:
    """The address of the jobs' episodes or pairs in the view, else of the first section of the page about them."""
    stage, agent = box
    if view_page and stage in _LISTS:
        return f"{view_page}#/{_LISTS[stage]}{f'&agent={agent}' if agent else ''}"
    return next((f"#{section}" for section in _SECTIONS.get(stage, ()) if section in sections), "#provenance")


def _regime(files: Mapping[str, Path], run: RunSettings) -> str:
    """Whether the suite can decide between methods, in one sentence; empty without the check."""
    if "regime.json" not in files:
        return ""
    every = ReportLabels({name: recipe.label for name, recipe in run.recipes.items()}, run.labels.envs)
    return regime.sentence(product_file.read(files["regime.json"], list[RegimeCheck]), every)


def section_title(name: str) -> str:
    """`Table 1` for `table1`."""
    return re.sub(r"(?<=\D)(?=\d)", " ", name).replace("_", " ").capitalize()


def _link(claims: Claims, view_page: str, cell: Cell) -> str:
    """The address of a cell's episodes, empty without a view; the view shows one split or all."""
    if not view_page:
        return ""
    of_column = splits(cell.column, claims)
    return view.link(view_page, cell.sources, of_column.pop() if len(of_column) == 1 else "")


def _figures(
    files: Mapping[str, Path],
    jobs: Iterable[Provenance],
    labels: ReportLabels,
    page: PageFiles,
    sections: Iterable[FigureSection],
) -> Iterator[PageFigure]:
    """The sections that show figures; one in which nothing was measured is left out."""
    results = [job.result for job in jobs if isinstance(job.notes, TrainReport) and job.notes.history]
    trained = [(f"{name}/provenance.json", f"../../{name}/provenance.json") for name in results]
    if trained and page.flat:
        trained = [(page.jobs, page.jobs)]
    for section in sections:
        is_drawn = section.data in files and (trained or section.data != training_figure.NAME)
        if is_drawn and (caption := section.caption(files[section.data])):
            images = [files[name] for name in section.images if name in files]
            names = dict.fromkeys([section.data, *section.images])
            links = [(name, page.address(files[name])) for name in names if name in files]
            yield PageFigure(
                id=re.sub(r"\W+", "-", section.title.lower()),
                title=section.title,
                caption=caption,
                images=[_inline(path.read_text(encoding="utf-8")) for path in images],
                texts=[_text(files[name], labels, page) for name in section.texts if name in files],
                shown=section.texts,
                data=links + (trained if section.data == training_figure.NAME else []),
            )


def _texts(
    files: Mapping[str, Path], labels: ReportLabels, page: PageFiles, shown: Collection[str]
) -> Iterator[dict[str, str]]:
    """Markdown files, except those that are `shown` above or as a table."""
    texts = {path.stem: path for path in files.values() if path.suffix == ".md" and path.name not in shown}
    for name in sorted(texts.keys() - {"verdicts"}, key=[*_TEXTS, *sorted(texts)].index):
        yield _text(texts[name], labels, page)


def _text(path: Path, labels: ReportLabels, page: PageFiles) -> dict[str, str]:
    """A Markdown file as escaped HTML below level 2; in tables, keys become labels and long numbers readable ones.

    A cell has the head of its column, and a table with sentences has a class, for narrow screens.
    """
    renderer, shown_words = MarkdownIt("commonmark", {"html": False}).enable("table"), labels.words()
    tokens = renderer.parse(path.read_text(encoding="utf-8"))
    for heading in (token for token in tokens if token.type in ("heading_open", "heading_close")):
        heading.tag = f"h{min(6, int(heading.tag[1:]) + 2)}"
    table, heads, column = tokens[0], list[str](), 0
    for opening, token in itertools.pairwise(tokens):
        if opening.type == "table_open":
            table, heads = opening, []
        if opening.type == "th_open":
            heads.append(token.content)
        column = 0 if opening.type == "tr_open" else column + (opening.type == "td_close")
        if opening.type == "td_open":
            opening.attrSet("data-label", heads[column])
            if len(token.content) > SENTENCE:
                table.attrSet("class", "blocks")
        text = shown_words.get(token.content)
        if re.fullmatch(r"-?\d+\.\d{3,}|-?\d+(\.\d+)?e[-+]\d+", token.content):
            text = readable(float(token.content))
        if opening.type == "td_open" and text and token.children:
            token.children = token.children[:1]
            token.children[0].type, token.children[0].content = "text", text
    return {
        "title": _TEXTS.get(path.stem, section_title(path.stem)),
        "html": renderer.renderer.render(tokens, renderer.options, {}),
        "data": page.address(path),
    }


def _provenance(jobs: Collection[Provenance]) -> dict[str, str]:
    """Values that all results share, or the number of results with each value where they differ."""
    seeds = sorted({job.seeds["suite"] for job in jobs if "suite" in job.seeds})
    played = [job.notes for job in jobs if isinstance(job.notes, EpisodeNotes)]
    hardware = [job.hardware or "unknown" for job in jobs]
    return {
        "commit": _counted(f"{job.commit or 'unknown'}{_CHANGES[job.dirty]}" for job in jobs),
        "container": _counted(job.container or "none" for job in jobs),
        "protocol": _counted(job.protocol for job in jobs),
        "seeds": ", ".join(map(str, seeds)),
        "environments": "; ".join(sorted({name for each in played for name in each.environments})),
        "versions": _counted(
            ", ".join(f"{name} {version}" for name, version in sorted(job.versions.items())) for job in jobs
        ),
        **({"hardware": _counted(hardware)} if {*hardware} != {"unknown"} else {}),  # older results have none
        "results": ", ".join(f"{count} {stage}" for stage, count in sorted(Counter(job.stage for job in jobs).items())),
    }


def _counted(values: Iterable[str]) -> str:
    counts = Counter(values)
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{value} ({count} results)" for value, count in sorted(counts.items()))
