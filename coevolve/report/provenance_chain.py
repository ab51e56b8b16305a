"""All results that a file depends on, with their provenance; the hash of every file is checked."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coevolve.records.base import Record
from coevolve.records.provenance import Provenance
from coevolve.storage import files, provenance, pruned
from coevolve.storage.provenance import NAME

#: Whether a job of the suite makes a file and leaves a provenance beside it.
IsMade = Callable[[str], bool]


class Input(Record):
    """An input file of a result; `made_by` is the folder of the result that made it, None for external files."""

    path: str
    sha256: str
    made_by: str | None


class Result(Record):
    """The output folder of one job, its provenance and its inputs."""

    folder: str
    provenance: Provenance
    inputs: tuple[Input, ...]


class Chain(Record):
    """Results, each once, consumers before producers; `broken`: sentences on files that changed or are not listed."""

    results: tuple[Result, ...]
    files: int
    broken: tuple[str, ...]

    def of(self, folder: str) -> Result | None:
        """The result in `folder`; None if it has no provenance."""
        return next((result for result in self.results if result.folder == folder), None)

    def checked(self, broken: Sequence[str]) -> list[str]:
        """Lines of text: how much was checked, and the inconsistencies `broken`."""
        state = "NOT as they were:" if broken else "all as they were"
        return [f"{len(self.results)} results, {self.files} files checked; {state}", *broken]


def read(folder: str) -> Provenance:
    """The provenance of the result in `folder`; raises `UserError` if it is missing or invalid."""
    return provenance.read(Path(folder, NAME))


def walk(folder: str, read_files: Iterable[str], is_made: IsMade, declared: Collection[str] = ()) -> Chain:
    """All results that `read_files`, inputs of the result in `folder`, were made from; each file is hashed once.

    Paths are relative to the working directory of the run. Of files outside of it only the `declared` ones and those
    below them are read: a provenance, which anyone may have written, can list any path. Raises `UserError` for a
    missing or invalid provenance.
    """
    results: dict[str, Result] = {}
    files = _Files(is_made, declared)
    start, selected = read(folder), sorted(set(read_files))
    files.check_inputs(folder, {path: start.inputs.get(path, "") for path in selected})
    waiting = [Path(path).parent.as_posix() for path in reversed(selected)]
    while waiting:
        current = waiting.pop()
        if current in results or not Path(current, NAME).exists():
            continue
        record = read(current)
        inputs = tuple(Input(path=path, sha256=sha, made_by=_maker(path)) for path, sha in record.inputs.items())
        pruned_files = pruned.deleted(Path(current))
        results[current] = Result(folder=current, provenance=record, inputs=inputs)
        for name, sha256 in record.outputs.items():
            if name in pruned_files and not Path(current, name).exists():
                continue
            files.check(f"{current}/{name}", sha256, f"`{record.stage}` wrote")
        files.check_inputs(current, record.inputs)
        waiting += [each.made_by for each in reversed(inputs) if each.made_by]
    return Chain(results=tuple(results.values()), files=len(files.now), broken=tuple(files.sentences()))


def _maker(path: str) -> str | None:
    """The folder of the result that a file belongs to."""
    parent = Path(path).parent
    return parent.as_posix() if (parent / NAME).exists() else None


@dataclass
class _Files:
    """Hashes of files now, what others claim of them (`wrong`), and provenances that should list them (`unlisted`).

    Those `outside` are not read.
    """

    is_made: IsMade
    declared: Collection[str]
    now: dict[str, str | None] = field(default_factory=dict)
    makers: dict[Path, Provenance | None] = field(default_factory=dict)
    unlisted: dict[tuple[str, str], None] = field(default_factory=dict)
    wrong: dict[str, list[str]] = field(default_factory=dict)
    outside: dict[str, str] = field(default_factory=dict)

    def check(self, path: str, sha256: str, claim: str) -> None:
        """Compare a file with a hash; "" stands for one that is not known."""
        if not self._is_readable(path):
            self.outside[path] = claim
            return
        if path not in self.now:
            self.now[path] = files.sha256(Path(path)) if Path(path).exists() else None
        if sha256 and self.now[path] != sha256:
            self.wrong.setdefault(path, []).append(f"what {claim} (sha256 {sha256[:12]})")

    def check_inputs(self, folder: str, inputs: dict[str, str]) -> None:
        """Compare the inputs of a result, "" standing for a hash that its provenance lacks."""
        for path, sha256 in inputs.items():
            self.check(path, sha256, f"{folder} was made from")
            if not sha256:
                self.unlisted[f"{folder}/{NAME}", path] = None
            if not self._is_listed(Path(path)):
                self.unlisted[Path(path).with_name(NAME).as_posix(), path] = None

    def sentences(self) -> Iterator[str]:
        """One sentence for every file that differs, and for every file that no provenance lists."""
        for record, path in self.unlisted:
            state = "does not list" if Path(record).exists() else "is missing; it should list"
            yield f"{record} {state} {path}; run the stage that makes it again."
        for path, claim in self.outside.items():
            yield f"{path} is what {claim}, but outside of the project and no file of the suite; it was not read."
        for path, claims in self.wrong.items():
            now, claimed = self.now[path], " and ".join(claims)
            state = f"is not {claimed}: it is {now[:12]} now" if now else f"is missing: it was {claimed}"
            yield f"{path} {state}; restore it or make it again."

    def _is_readable(self, path: str) -> bool:
        """Whether a file lies below the working directory, or below what the suite names."""
        whole = Path(os.path.normpath(Path(path).absolute()))
        return any(whole.is_relative_to(Path(root).absolute()) for root in (".", *self.declared))

    def _is_listed(self, path: Path) -> bool:
        """Whether the provenance beside a file lists it; without one, whether the file comes from outside."""
        if path.parent not in self.makers:
            self.makers[path.parent] = provenance.of_file(path)
        maker = self.makers[path.parent]
        return path.name == NAME or (path.name in maker.outputs if maker else not self.is_made(path.as_posix()))
