"""The way back from a file: the results it was made from, each with its provenance, every file checked on the way."""

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
    """A file that a result was made from; `made_by` is the folder of the result it belongs to, None for outside."""

    path: str
    sha256: str
    made_by: str | None


class Result(Record):
    """A folder that one execution of a stage left, what it says of itself, and what it was made from."""

    folder: str
    provenance: Provenance
    inputs: tuple[Input, ...]


class Chain(Record):
    """Results, consumers before producers, each once; one sentence for every file that is not what it was."""

    results: tuple[Result, ...]
    files: int
    broken: tuple[str, ...]

    def of(self, folder: str) -> Result:
        """The result in `folder`."""
        return next(result for result in self.results if result.folder == folder)


def read(folder: str) -> Provenance:
    """Who made the result in `folder`; raises `UserError` if it does not say."""
    path = Path(folder, NAME)
    try:
        return Provenance.from_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run the stage that makes it.") from None
    except ValidationError:
        raise UserError(f"{path}: no provenance of this version of the kit; rerun its stage.") from None


def walk(folder: str, read_files: Iterable[str]) -> Chain:
    """Everything that `read_files`, inputs of the result in `folder`, were made from; each file is hashed once.

    Paths are relative to where the suite was run. Raises `UserError` if `folder` has no provenance.
    """
    found: dict[str, Result] = {}
    files = _Files()
    start, asked = read(folder), set(read_files)
    files.check_inputs(folder, {path: sha for path, sha in start.inputs.items() if path in asked})
    waiting = [Path(path).parent.as_posix() for path in sorted(asked, reverse=True)]
    while waiting:
        one = waiting.pop()
        if one in found or not Path(one, NAME).exists():
            continue
        found[one] = _result(one)
        files.check_outputs(one, found[one].provenance)
        files.check_inputs(one, found[one].provenance.inputs)
        waiting += [each.made_by for each in reversed(found[one].inputs) if each.made_by]
    return Chain(results=tuple(found.values()), files=len(files.now), broken=tuple(files.sentences()))


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
    """Files as they are, against what their makers wrote and their readers read."""

    now: dict[str, str | None] = field(default_factory=dict)
    wrong: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def check_outputs(self, folder: str, provenance: Provenance) -> None:
        """Compare what a result's stage wrote."""
        for name, sha256 in provenance.outputs.items():
            self._compare(f"{folder}/{name}", sha256, f"`{provenance.stage}` wrote")

    def check_inputs(self, folder: str, inputs: dict[str, str]) -> None:
        """Compare what a result was made from."""
        for path, sha256 in inputs.items():
            self._compare(path, sha256, f"{folder} was made from")

    def sentences(self) -> Iterator[str]:
        """One sentence for every file that differs, however many read it."""
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
