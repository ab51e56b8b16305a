"""All results that a file was made from, with their provenance; the hash of every file on the way is checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from coevolve.errors import UserError
from coevolve.storage import files
from coevolve.types import Provenance, Record

NAME = "provenance.json"


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
    """Results, each once, consumers before producers; `broken` has a sentence for every file that has changed."""

    results: tuple[Result, ...]
    files: int
    broken: tuple[str, ...]

    def of(self, folder: str) -> Result:
        """The result in `folder`."""
        return next(result for result in self.results if result.folder == folder)


def read(folder: str) -> Provenance:
    """The provenance of the result in `folder`; raises `UserError` if it is missing or invalid."""
    path = Path(folder, NAME)
    try:
        return Provenance.from_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run the stage that makes it.") from None
    except ValidationError:
        raise UserError(f"{path}: not a provenance of this version of the kit; rerun its stage.") from None


def walk(folder: str, read_files: Iterable[str]) -> Chain:
    """All results that `read_files`, inputs of the result in `folder`, were made from; each file is hashed once.

    Paths are relative to the working directory of the run. Raises `UserError` if `folder` has no provenance.
    """
    results: dict[str, Result] = {}
    files = _Files()
    start, selected = read(folder), set(read_files)
    files.check_inputs(folder, {path: sha for path, sha in start.inputs.items() if path in selected})
    waiting = [Path(path).parent.as_posix() for path in sorted(selected, reverse=True)]
    while waiting:
        current = waiting.pop()
        if current in results or not Path(current, NAME).exists():
            continue
        results[current] = _result(current)
        files.check_outputs(current, results[current].provenance)
        files.check_inputs(current, results[current].provenance.inputs)
        waiting += [each.made_by for each in reversed(results[current].inputs) if each.made_by]
    return Chain(results=tuple(results.values()), files=len(files.now), broken=tuple(files.sentences()))


def _result(folder: str) -> Result:
    provenance = read(folder)
    inputs = tuple(Input(path=path, sha256=sha, made_by=_maker(path)) for path, sha in provenance.inputs.items())
    return Result(folder=folder, provenance=provenance, inputs=inputs)


def _maker(path: str) -> str | None:
    """The folder of the result that a file belongs to."""
    parent = Path(path).parent
    return parent.as_posix() if (parent / NAME).exists() else None


@dataclass
class _Files:
    """Hashes of files now, compared with those in the provenance of their producers and consumers."""

    now: dict[str, str | None] = field(default_factory=dict)
    wrong: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def check_outputs(self, folder: str, provenance: Provenance) -> None:
        """Compare the outputs of a result."""
        for name, sha256 in provenance.outputs.items():
            self._compare(f"{folder}/{name}", sha256, f"`{provenance.stage}` wrote")

    def check_inputs(self, folder: str, inputs: dict[str, str]) -> None:
        """Compare the inputs of a result."""
        for path, sha256 in inputs.items():
            self._compare(path, sha256, f"{folder} was made from")

    def sentences(self) -> Iterator[str]:
        """One sentence for every file that differs."""
        for path, differences in self.wrong.items():
            now = self.now[path]
            claims = " and ".join(f"what {claim} (sha256 {sha256[:12]})" for sha256, claim in differences)
            state = f"is not {claims}: it is {now[:12]} now" if now else f"is missing: it was {claims}"
            yield f"{path} {state}; restore it or make it again."

    def _compare(self, path: str, sha256: str, claim: str) -> None:
        if path not in self.now:
            self.now[path] = files.sha256(Path(path)) if Path(path).exists() else None
        if self.now[path] != sha256:
            self.wrong.setdefault(path, []).append((sha256, claim))
