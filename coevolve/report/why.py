"""Trace a printed cell to its records, episodes, pairs, policies, code, and to the paper's cell."""

import difflib
import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from coevolve.errors import UserError
from coevolve.records.base import Record
from coevolve.records.episodes import Trajectory
from coevolve.records.evaluation import EvalRecord
from coevolve.records.pairs import PreferencePair
from coevolve.records.provenance import Provenance
from coevolve.records.tables import Cell
from coevolve.report import provenance_chain
from coevolve.report.claims import Claims
from coevolve.report.table import Table
from coevolve.storage import files, jsonl, policy_dir

#: Which of a job's settings and code differ today from its provenance.
Changed = Callable[[Provenance], Sequence[str]]
#: The table that a query refers to if it fits cells of several tables.
FIRST = "table1"
_WORD = re.compile(r"[a-z0-9.]+")


class Printed(Record):
    """A printed cell with its name, its file and its table (without the other cells)."""

    name: str
    file: str
    table: Table
    cell: Cell


class Evidence(Record):
    """The records of one file that a cell averages."""

    file: str
    records: tuple[EvalRecord, ...]

    @property
    def mean(self) -> float | None:
        """Average reward of the records; None if there are none."""
        return sum(record.reward for record in self.records) / len(self.records) if self.records else None


class CellTrace(Record):
    """A cell, its `place` in the paper, what the paper `said` of it, all it depends on, and what is `broken`."""

    printed: Printed
    place: str
    said: tuple[str, ...]
    footnotes: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    chain: provenance_chain.Chain
    broken: tuple[str, ...]


def cells(home: Path) -> list[Printed]:
    """All cells of all tables of a suite, including ablations; raises `UserError` if there are none."""
    by_name = {path.stem: path for path in home.glob("paper/*/*.json")}
    by_name |= {f"ablation_{path.parent.name}": path for path in home.glob("ablations/*/table.json")}
    files = sorted(by_name.items(), key=lambda item: (item[0] != FIRST, item[0]))
    printed = [
        Printed(name=_name(stem, table, in_file[0], cell), file=path.as_posix(), table=bare, cell=cell)
        for stem, path in files
        for in_file in [list(tables(path))]
        for table in in_file
        for bare in [table.model_copy(update={"cells": ()})]
        for cell in table.cells
    ]
    if not printed:
        raise UserError(f"{home}: no tables; make the suite's tables first.")
    return printed


def find(printed: Sequence[Printed], query: str) -> Printed:
    """The cell that matches a query: all its words are words of the cell's name or keys, or prefixes of them.

    Cells of the first matching table have priority. Raises `UserError` if several match or none does, and lists cells.
    """
    words = _WORD.findall(query.lower())
    for fit in range(3):
        fitting = [each for each in printed if _fits(words, each)[fit]]
        first = [each for each in fitting if (each.file, each.table) == (fitting[0].file, fitting[0].table)]
        if len(first) == 1:
            return first[0]
        if first:
            raise UserError(f"`{query}` fits {len(first)} cells; say which: {_listed(first)}.")
    near = difflib.get_close_matches(query, [each.name for each in printed], n=3, cutoff=0.3)
    meant = [each for each in printed if each.name in near] or list(printed)
    raise UserError(f"`{query}` fits no cell; there are {len(printed)}, such as {_listed(meant)}.")


def ask(
    printed: Printed,
    claims: Claims,
    is_made: provenance_chain.IsMade,
    changed: Changed,
    declared: Collection[str] = (),
) -> CellTrace:
    """Trace a cell; check files, ids, settings and code. Raises `UserError` for a missing or invalid provenance."""
    cell, key = printed.cell, (printed.cell.row, printed.cell.column)
    sources, folder = list(dict.fromkeys(cell.sources)), Path(printed.file).parent.as_posix()
    chain = provenance_chain.walk(folder, sources, is_made, declared)
    evidence = tuple(_evidence(sources, splits(cell.column, claims)))
    printed_at = [f"{claim.place} ({claims.source})" for claim in claims.cells() if (claim.row, claim.column) == key]
    broken = [_changed_table(printed, folder), chain.broken, _dangling_ids(evidence, chain)]
    return CellTrace(
        printed=printed,
        place="".join(printed_at),
        said=tuple(dict.fromkeys(_statements(cell, claims))),
        footnotes=tuple(f"{note.mark}: {note.text}" for note in printed.table.footnotes if key in note.cells),
        evidence=evidence,
        chain=chain,
        broken=tuple(itertools.chain(*broken, _stale(folder, chain, changed))),
    )


def tables(path: Path) -> Iterator[Table]:
    """The tables in a JSON file, if any; raises `UserError` for no JSON, or a table of another version of the kit."""
    content = files.read_json(path)
    for each in content if isinstance(content, list) else [content]:
        if isinstance(each, dict) and "cells" in each:
            try:
                yield Table.model_validate(each)
            except ValidationError:
                raise UserError(f"{path}: a table of another version of the kit; run its stage again.") from None


def _name(file: str, table: Table, first: Table, cell: Cell) -> str:
    """Such as `table1: SFT, WebShop`; a file's further tables are distinguished by unit and model."""
    other = [value for value, of_first in ((table.unit, first.unit), (table.model, first.model)) if value != of_first]
    which = f" ({', '.join(other)})" if other else ""
    return f"{file}{which}: {table.rows[cell.row]}, {table.columns[cell.column]}"


def _fits(words: list[str], printed: Printed) -> tuple[bool, bool, bool]:
    """Whether the words are the cell's name; are all words of its name or keys; are beginnings of such words."""
    name, keys = (_WORD.findall(text.lower()) for text in (printed.name, f"{printed.cell.row} {printed.cell.column}"))
    begin = all(any(known.startswith(word) for known in name + keys) for word in words)
    return words == name, {*words} <= {*name, *keys}, begin


def _listed(printed: Sequence[Printed]) -> str:
    return "; ".join(f"`{each.name}`" for each in printed[:8]) + ("; ..." if len(printed) > 8 else "")


def splits(column: str, claims: Claims) -> set[str]:
    """The splits of a column; a column that the paper lacks is named after its environment and split."""
    if column not in claims.columns:
        return {column.split(" ")[-1]}
    return {split for part in claims.parts(column) if (split := claims.columns[part].split)}


def _statements(cell: Cell, claims: Claims) -> Iterator[str]:
    """The paper's statements about the cell's row in its column, or in its environment."""
    column = claims.columns.get(cell.column)
    for statement in claims.statements.values():
        env = column.env if column else None
        on_it = getattr(statement, "column", cell.column) == cell.column and getattr(statement, "env", env) == env
        if on_it and cell.row in statement.methods:
            yield f"{statement.text} ({statement.place})"


def _evidence(sources: Sequence[str], splits: set[str]) -> Iterator[Evidence]:
    for source in sources:
        if Path(source).exists():
            records = jsonl.read(Path(source), EvalRecord)
            yield Evidence(file=source, records=tuple(record for record in records if record.split in splits))


def _changed_table(printed: Printed, folder: str) -> Iterator[str]:
    record, now = provenance_chain.read(folder), files.sha256(Path(printed.file))
    if record.outputs.get(Path(printed.file).name) != now:
        yield f"{printed.file} is not what `{record.stage}` wrote: it is {now[:12]} now; make it again."


def _stale(folder: str, chain: provenance_chain.Chain, changed: Changed) -> Iterator[str]:
    """A sentence for each stage whose code or settings have changed since it made the results."""
    results = [(folder, provenance_chain.read(folder)), *((each.folder, each.provenance) for each in chain.results)]
    stale: dict[tuple[str, str], list[str]] = {}
    for made, record in results:
        if names := changed(record):
            stale.setdefault((record.stage, " and ".join(names)), []).append(made)
    for (stage, names), folders in stale.items():
        more = f" and {len(folders) - 1} more" if len(folders) > 1 else ""
        yield f"stage `{stage}` is stale: its {names} changed after it made {folders[0]}{more}; run the suite again."


def _dangling_ids(evidence: Sequence[Evidence], chain: provenance_chain.Chain) -> Iterator[str]:
    """Records without their episode, pairs without their trajectories, episodes of another policy."""
    ids = functools.cache(_ids)
    for each in evidence:
        known = ids(str(Path(each.file).with_name("episodes.jsonl")))
        lost = [record.trajectory_id for record in each.records if record.trajectory_id not in known]
        if lost:
            yield f"{each.file}: {len(lost)} records name episodes that are not beside it, such as {lost[0]}."
    for result in chain.results:
        rollouts = [each.path for each in result.inputs if each.path.endswith(("episodes.jsonl", "experts.jsonl"))]
        rollouts.append(f"{result.folder}/explored.jsonl")  # of a job that makes pairs of its own explorations (IPR)
        yield from _unknown_sides(Path(result.folder, "pairs.jsonl"), set().union(*map(ids, rollouts)))
        yield from _other_policies(result)


def _unknown_sides(path: Path, known: set[str]) -> Iterator[str]:
    pairs = jsonl.read(path, PreferencePair) if path.exists() else []
    lost = [side for pair in pairs for side in (pair.chosen_id, pair.rejected_id) if side not in known]
    if lost:
        yield f"{path}: {len(lost)} chosen or rejected ids match no input episode, such as {lost[0]}."


def _other_policies(result: provenance_chain.Result) -> Iterator[str]:
    path = Path(result.folder, "episodes.jsonl")
    if Path(result.folder, "policy.json").exists():
        return  # of a training: played by the policy of each step, which was not saved
    policies = [Path(each.path) for each in result.inputs if each.path.endswith("/policy.json")]
    if not path.exists() or not policies or not all(policy.exists() for policy in policies):
        return
    named = {policy_dir.read_ref(policy).sha256 for policy in policies}
    acted = {episode.policy.sha256 for episode in jsonl.read(path, Trajectory) if episode.policy}
    for other in sorted(acted - named):
        yield f"{path}: played by policy {other[:12]}, which is not an input of this job."


def _ids(path: str) -> set[str]:
    return {episode.digest() for episode in jsonl.read(Path(path), Trajectory)} if Path(path).exists() else set()
