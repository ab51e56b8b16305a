"""JSON lines: whole files of records, and journals that are appended record by record."""

import os
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from coevolve.errors import UserError
from coevolve.records.base import Record
from coevolve.storage.files import disk_errors, open_file, read_bytes, read_errors, write_bytes

R = TypeVar("R", bound=Record)
M = TypeVar("M", bound=BaseModel)


def read(path: Path, kind: type[R]) -> list[R]:
    """All records of a finished JSONL file; raises as `stream` does."""
    return list(stream(path, kind))


def stream(path: Path, kind: type[R]) -> Iterator[R]:
    """The records of a finished JSONL file, one at a time.

    Raises `UserError` for a file that cannot be read, and with file and line if a record is not a valid `kind`, or
    repeats one (`unique_key`).
    """
    with read_errors(path), open_file(path) as file:
        yield from _parse(path, file, kind, unique=True)


def _parse(path: Path, lines: Iterable[bytes], kind: type[R], *, unique: bool) -> Iterator[R]:
    """The records in the `lines` of a file."""
    seen: dict[Hashable, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = kind.from_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            problem = f"line {number} is not a valid {kind.__name__} ({where or 'record'}: {first['msg']})"
            raise UserError(f"{path}: {problem}; delete the file and rerun its stage.") from None
        key = record.unique_key() if unique else None
        if key is not None and seen.setdefault(key, number) != number:
            problem = f"line {number} repeats the {kind.__name__} of line {seen[key]}"
            raise UserError(f"{path}: {problem}; delete the file and rerun its stage.")
        yield record


def read_items(path: Path, kind: type[M]) -> list[M]:
    """All items of a JSON list from outside the kit; raises `UserError` with file and key of an invalid item."""
    try:
        return TypeAdapter(list[kind]).validate_json(read_bytes(path))  # type: ignore[valid-type]
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "(top level)"
        raise UserError(f"{path}: key `{where}`: {first['msg']}; fetch the file again.") from None


def write(path: Path, records: Iterable[Record]) -> None:
    """Write a JSONL file; at any moment it is the old one or the new one."""
    write_bytes(path, b"".join(record.to_json().encode() + b"\n" for record in records))


class Journal(Generic[R]):
    """An append-only JSONL file that survives `kill -9`: a record exists once its line, newline included, is on disk.

    Opening a journal reads the complete records of the file and cuts off an incomplete last line.
    Raises `UserError` with file and line if a complete line is not a valid record.
    """

    def __init__(self, path: Path, kind: type[R]) -> None:
        self.path = path
        content = read_bytes(path) if path.exists() else b""
        complete = content[: content.rfind(b"\n") + 1]
        self.records: list[R] = list(_parse(path, complete.split(b"\n"), kind, unique=False))
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
            self._file.truncate(len(complete))

    def append(self, record: R) -> None:
        """Add a record; when this returns, the record is on disk."""
        with disk_errors(self.path):
            self._file.write(record.to_json().encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        self.records.append(record)

    def close(self) -> None:
        """Close the file; `records` stays readable."""
        self._file.close()
