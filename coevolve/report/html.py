"""The report: what was run, tables, charts and verdicts of a suite as one HTML file that needs no other file."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt

from coevolve.config.suite import Suite
from coevolve.report import page_figures, verdicts, view
from coevolve.report.claims import Claims
from coevolve.report.number_text import duration, readable
from coevolve.report.page_figures import PageFigure, PageLabels, TrainingCurve
from coevolve.report.verdicts import OUTCOMES, Verdict
from coevolve.report.why import splits, tables
from coevolve.types import Cell, EpisodeNotes, Provenance

TEMPLATE = Path(__file__).with_name("report.html")
#: Address of the suite's view, relative to the report.
VIEW = "../../view/index.html"
_CHANGES = {True: " with uncommitted changes", False: "", None: " (uncommitted changes unknown)"}
#: Titles of Markdown files, in the order of the page.
_TEXTS = {
    "summary": "Differences between methods, pairs and drops, in numbers",
    "analysis": "Failures, log-probs and compute, in numbers",
    "costs": "Costs, in numbers",
    "examples": "Examples of failures",
}
Draw = Callable[[Path, PageLabels], PageFigure]
#: The figures before and after the training curves, in order, by the name of their data file.
_BEFORE: dict[str, Draw] = {
    "figure3.json": page_figures.learning_curves,
    "analysis.json": page_figures.failure_rewards,
    "figure2.json": page_figures.failure_numbers,
    "pairs.json": page_figures.pairs_and_drops,
}
_AFTER: dict[str, Draw] = {"costs.json": page_figures.costs}


def report(
    paths: Sequence[Path],
    suite: Suite,
    claims: Claims,
    jobs: Sequence[Provenance],
    trainings: Sequence[TrainingCurve],
    view_page: str = VIEW,
) -> str:
    """The page: the run, tables, charts, all other Markdown of `paths`, the provenance of `jobs`, and verdicts.

    A product that is not among `paths` has no section. Equal files give equal text. `view_page` is the address of the
    suite's view, relative to the report.
    """
    files = {path.name: path for path in sorted(paths, key=lambda path: path.name)}
    labels = PageLabels(
        {method: suite.recipes[method].label for method in suite.methods}, page_figures.env_labels(suite.envs, claims)
    )
    judgements = [path for name, path in files.items() if name == "verdicts.json"]
    judged = [verdict for path in judgements for verdict in verdicts.read(path)]
    environment = Environment(
        loader=FileSystemLoader(TEMPLATE.parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    return environment.get_template(TEMPLATE.name).render(
        title=f"Suite {suite.suite}",
        view=view_page,
        run=_run(suite, labels, jobs),
        tables=[
            {
                "title": _title(path.stem),
                "id": f"{path.stem}-{number}",
                "table": verdicts.noted(table, judged),
                "data": _address(path),
            }
            for path in files.values()
            if path.suffix == ".json"
            for number, table in enumerate(tables(path))
        ],
        link=functools.partial(_link, claims, view_page),
        figures=list(_figures(files, trainings, labels)),
        texts=list(_texts(files, labels)),
        provenance=_provenance(jobs),
        verdicts=_groups(judged),
        not_run=sum(verdict.verdict == "not run" for verdict in judged),
        verdict_file="".join(map(_address, judgements)),
        readable=readable,
    )


def _run(suite: Suite, labels: PageLabels, jobs: Sequence[Provenance]) -> dict[str, str]:
    """What was run, in words."""
    by_env = [f"{labels.env(env)} {suite.iterations[env]}" for env in suite.envs]
    iterations = {suite.iterations[env] for env in suite.envs}
    others = [
        f"{labels.method(method)} {recipe.iterations}"
        for method, recipe in suite.recipes.items()
        if method in suite.methods and recipe.iterations
    ]
    same = [str(*iterations)] if len(iterations) == 1 else by_env
    seconds = sum(job.seconds for job in jobs)
    return {
        "Models": "; ".join(model.label for model in suite.models.values()),
        "Environments": ", ".join(map(labels.env, suite.envs)),
        "Methods": ", ".join(labels.methods.values()),
        "Seeds": ", ".join(map(str, suite.seeds)),
        "Iterations": ", ".join(same + others),
        "Protocol": suite.protocol,
        "Jobs": f"{len(jobs):,} in {duration(seconds / 3600)} of computing" if jobs else "",
    }


def _title(name: str) -> str:
    """`Table 1` for `table1`."""
    return re.sub(r"(?<=\D)(?=\d)", " ", name).replace("_", " ").capitalize()


def _address(path: Path) -> str:
    """The address of another product's file, relative to the report."""
    return f"../{path.parent.name}/{path.name}"


def _link(claims: Claims, view_page: str, cell: Cell) -> str:
    """The address of a cell's episodes; the view shows one split or all."""
    of_column = splits(cell.column, claims)
    return view.link(view_page, cell.sources, of_column.pop() if len(of_column) == 1 else "")


def _figures(files: Mapping[str, Path], trainings: Sequence[TrainingCurve], labels: PageLabels) -> Iterator[PageFigure]:
    """The charts of all data files, and those of the trainings; a section without a chart is left out."""
    drawn = [draw(files[name], labels) for name, draw in _BEFORE.items() if name in files]
    drawn.append(page_figures.training_curves(trainings, labels))
    drawn += [draw(files[name], labels) for name, draw in _AFTER.items() if name in files]
    yield from (figure for figure in drawn if figure.charts or figure.folded)


def _groups(judged: Sequence[Verdict]) -> dict[str, list[dict[str, Any]]]:
    """The verdicts by outcome, but for claims that were not run."""
    groups = {outcome: [v.model_dump() for v in judged if v.verdict == outcome] for outcome in OUTCOMES}
    return {outcome: group for outcome, group in groups.items() if group and outcome != "not run"}


def _texts(files: Mapping[str, Path], labels: PageLabels) -> Iterator[dict[str, str]]:
    """Markdown that is not shown above as a table, as HTML, under a heading of level 2. HTML in it is escaped.

    A table's cell that is the key of a method, environment or pair kind becomes its label.
    """
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    shown = {path.stem for path in files.values() if path.suffix == ".json" and any(True for _ in tables(path))}
    texts = {path.stem: path for path in files.values() if path.suffix == ".md" and path.stem not in shown}
    words = labels.words()
    for name in sorted(texts.keys() - {"verdicts"}, key=[*_TEXTS, *sorted(texts)].index):
        tokens = renderer.parse(texts[name].read_text(encoding="utf-8"))
        for heading in (token for token in tokens if token.type in ("heading_open", "heading_close")):
            heading.tag = f"h{min(6, int(heading.tag[1:]) + 2)}"
        for opening, token in itertools.pairwise(tokens):
            if opening.type == "td_open" and token.content in words and token.children:
                token.children = token.children[:1]
                token.children[0].type, token.children[0].content = "text", words[token.content]
        yield {
            "title": _TEXTS.get(name, _title(name)),
            "html": renderer.renderer.render(tokens, renderer.options, {}),
            "data": _address(texts[name]),
        }


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
