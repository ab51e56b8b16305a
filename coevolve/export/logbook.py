"""The verdicts of a suite as a logbook of Trackio, one page a claim: format version 2, as trackio 0.43.0 reads it."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tabulate import tabulate

from coevolve.errors import UserError
from coevolve.report.claim_tests import Results
from coevolve.report.claims import Claim, Claims
from coevolve.report.number_text import with_interval
from coevolve.report.verdicts import MINIATURE, Judgement, Verdict
from coevolve.storage import files, folders, provenance

#: Trackio's folder in a project, and in its `metadata.json` the key by which an export is told from a person's logbook.
FOLDER, MARK = ".trackio", "written_by"
_STATUS = {"agrees": "verified", "differs": "falsified"}


def write(suite: str, judged: Sequence[Verdict], claims: Claims, results: Results, out: Path) -> int:
    """Write the logbook to `out/.trackio`, replacing an earlier export; returns the number of its pages.

    `trackio logbook sync` in `out` adds its viewer. Raises `UserError` for a logbook that is not of an export.
    """
    metadata, named = out / FOLDER / "metadata.json", claims.by_name()
    if (out / FOLDER).exists() and not (metadata.is_file() and MARK in json.loads(metadata.read_bytes())):
        raise UserError(f"{out / FOLDER}: a logbook that is not of this export; give another --out.")
    miniature = any(each.miniature for each in judged)
    title = f"Claims of the paper on the {'miniature' if miniature else 'suite'} {suite}"
    rows = [[f"[{each.claim}](#/{_slug(each)})", status(each), each.text] for each in judged]
    index = tabulate(rows, ["Page", "Status", "Here"], tablefmt="github", disable_numparse=True)
    with folders.directory(out / FOLDER) as folder:
        pages = folder / "logbook/pages"
        text = f"# {title}\n\n{MINIATURE if miniature else ''}\n\n## Pages\n\n{index}\n"
        files.write_bytes(pages / "index.md", text.encode())
        for each in judged:
            page = f"# {each.claim}\n{''.join(_cells(suite, each, named[each.claim], claims, results))}"
            files.write_bytes(pages / _slug(each) / "page.md", page.encode())
        files.write_json(folder / "metadata.json", {"space_id": None, "emoji": "\N{DIRECT HIT}", MARK: "coevolve"})
    return len(judged)


def status(verdict: Verdict) -> str:
    """The verdict in Trackio's words: `verified`, `falsified`, `toy` (in the miniature) or `inconclusive`."""
    return "toy" if verdict.miniature else _STATUS.get(verdict.verdict, "inconclusive")


def _slug(verdict: Verdict) -> str:
    return verdict.claim.replace("_", "-").replace(".", "-")


def _cells(suite: str, verdict: Verdict, claim: Claim, claims: Claims, results: Results) -> Iterator[str]:
    """The cells of a claim's page: the claim, the numbers, the commands, and the files behind them."""
    text = f"**{status(verdict)}** ({verdict.verdict}): {verdict.text}\n\nThe paper: {verdict.says} ({verdict.place})."
    yield _cell(verdict, "markdown", "Claim", text)
    numbers = [_numbers("claim", verdict)] if verdict.mean is not None else []
    note = ""
    if order := verdict.miniature:
        numbers.append(_numbers("order", order))
        note = f"\n\nIn the miniature: {order.text} {MINIATURE}"
    if numbers:
        head = ["", "mean [95 % interval]", "tasks", "seeds", "seeds needed"]
        table = tabulate(numbers, head, tablefmt="github", disable_numparse=True)
        yield _cell(verdict, "markdown", "Numbers", table + note)
    commands = [f"coevolve verify --suite {suite}"]
    if verdict.row and verdict.column:
        commands.append(f"coevolve why --suite {suite} {verdict.row} {verdict.column}")
    code = "\n".join([*commands, f"coevolve reverify results/{suite}", f"coevolve view --suite {suite}"])
    yield _cell(verdict, "code", "Commands", f"````bash\n{code}\n````")
    if sources := _sources(claim, claims, results):
        head, view = ["file", "sha256", "commit", "code", "config"], f"results/{suite}/view/index.html#/episodes"
        table = tabulate(map(_origin, sources), head, tablefmt="github", disable_numparse=True)
        links = "\n".join(f"* `{view}?method={method}`" for method in sorted(claim.methods))
        yield _cell(verdict, "markdown", "Provenance and episodes", f"{table}\n\n{links}")


def _numbers(name: str, of: Judgement) -> list[str]:
    """A row of numbers of a verdict, or of an order in the miniature; those that it lacks are empty."""
    ends = (of.mean, of.low, of.high)
    interval = with_interval(*map(float, ends)) if None not in ends else ""  # type: ignore[arg-type]
    others = (of.tasks, of.seeds, of.seeds_needed)
    return [name, interval, *("" if value is None else f"{value:g}" for value in others)]


def _sources(claim: Claim, claims: Claims, results: Results) -> list[Path]:
    """The files of the results that a claim is about."""
    columns = [part for column in claim.columns for part in claims.parts(column)]
    envs = {claims.columns[column].env for column in columns} | {getattr(claim, "env", None)}
    if columns:
        named = ((m.method, m.env, source) for m in results.measurements for source in m.sources)
    else:
        named = ((e.method, e.env, e.source) for e in results.explorations)
    paths = (Path(source) for method, env, source in named if method in claim.methods and env in envs)
    return sorted({*paths})


def _origin(path: Path) -> Iterable[str]:
    """A file with its sha256, and the commit and digests of the job that wrote it."""
    record = provenance.read(path.with_name(provenance.NAME))
    sha256 = record.outputs.get(path.name, "")
    return f"`{path}`", sha256[:16], record.commit[:12], record.code_digest, record.config_digest


def _cell(verdict: Verdict, kind: str, title: str, body: str) -> str:
    """A cell of a page; equal cells have equal ids."""
    number = hashlib.sha256(f"{verdict.claim} {title} {body}".encode()).hexdigest()[:12]
    about = json.dumps({"type": kind, "id": f"cell_{number}", "title": title})
    return f"\n\n---\n<!-- trackio-cell\n{about}\n-->\n{body}\n"
