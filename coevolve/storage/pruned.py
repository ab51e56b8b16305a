"""Policies without weights: deleted after their last use, while `policy.json` and the provenance stay.

The mark is written before anything is deleted, so a deletion that is killed is finished by the next one.
"""

from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from coevolve.records.base import SCHEMA_VERSION, Record
from coevolve.storage import files

#: The file that marks the folder of a policy without weights.
MARK = "pruned.json"


class PrunedWeights(Record):
    """The files that were deleted from a policy's folder, and the command that makes them again."""

    schema_version: Literal[1] = SCHEMA_VERSION
    files: tuple[str, ...]
    remake: str


def read(folder: Path) -> PrunedWeights | None:
    """The mark in a policy's folder; None if there is none."""
    try:
        return PrunedWeights.from_json(files.read_bytes(folder / MARK)) if (folder / MARK).exists() else None
    except ValidationError:
        return None


def deleted(folder: Path) -> tuple[str, ...]:
    """Names of the files whose absence from a folder is no damage."""
    mark = read(folder)
    return mark.files if mark else ()


def prune(folder: Path, pattern: str, remake: str) -> int:
    """Delete the files that match `pattern` and mark the folder; returns their bytes. Raises as `disk_errors`."""
    weights = sorted(folder.glob(pattern))
    size = sum(path.stat().st_size for path in weights)
    if weights:
        names = dict.fromkeys([*deleted(folder), *(path.name for path in weights)])
        files.write_bytes(folder / MARK, PrunedWeights(files=tuple(names), remake=remake).to_json().encode() + b"\n")
    with files.disk_errors(folder):
        for path in weights:
            path.unlink(missing_ok=True)
    return size
