"""Files that are whole or absent: JSONL appended record by record, everything else written aside and renamed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from coevolve.errors import UserError
from coevolve.types import Record

R = TypeVar("R", bound=Record)
M = TypeVar("M", bound=BaseModel)


def read(path: Path, kind: type[R]) -> list[R]:
    """All records of a finished JSONL file; raises `UserError` naming file and line if one is no `kind`."""
    records: list[R] = []
    for number, line in enumerate(_bytes(path).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            records.append(kind.from_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            problem = f"line {number} is no valid {kind.__name__} ({where or 'record'}: {first['msg']})"
            raise UserError(f"{path}: {problem}; delete the file and rerun its stage.") from None
    return records


def read_items(path: Path, kind: type[M]) -> list[M]:
    """All items of a JSON list from outside the kit; raises `UserError` naming the file and the key of a bad one."""
    try:
        return TypeAdapter(list[kind]).validate_json(_bytes(path))  # type: ignore[valid-type]
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "(top level)"
        raise UserError(f"{path}: key `{where}`: {first['msg']}; fetch the file again.") from None


def write(path: Path, records: Iterable[Record]) -> None:
    """Write a whole JSONL file at once."""
    write_bytes(path, b"".join(record.to_json().encode() + b"\n" for record in records))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that at any moment it is the old one or the new one; raises `UserError` on a full disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = _aside(path)
    try:
        with _disk_errors(path), aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


class Journal(Generic[R]):
    """An append-only JSONL file that survives `kill -9`: a record counts once its line, newline included, is on disk.

    Opening one reads back the whole records already there and cuts off a torn last line.
    """

    def __init__(self, path: Path, kind: type[R]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        whole = path.read_bytes() if path.exists() else b""
        whole = whole[: whole.rfind(b"\n") + 1]
        self.records: list[R] = [kind.from_json(line) for line in whole.split(b"\n") if line]
        with _disk_errors(path):
            self._file = path.open("ab")
            self._file.truncate(len(whole))

    def append(self, record: R) -> None:
        """Add one record; when this returns, the record is on disk."""
        with _disk_errors(self.path):
            self._file.write(record.to_json().encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        self.records.append(record)

    def close(self) -> None:
        """Close the file; the records stay."""
        self._file.close()


@contextlib.contextmanager
def directory(path: Path) -> Iterator[Path]:
    """A new directory that appears under `path` whole, when the block ends without an error; an old one is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = _aside(path)
    shutil.rmtree(aside, ignore_errors=True)
    try:
        with _disk_errors(path):
            aside.mkdir()
            yield aside
        if path.exists():
            shutil.rmtree(path)
        aside.replace(path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


class Lock:
    """A file's lock that ends with the process that holds it, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def acquire(self) -> bool:
        """Take the lock if it is free; False while another process has it."""
        return self._take(fcntl.LOCK_EX | fcntl.LOCK_NB)

    def wait(self) -> None:
        """Take the lock as soon as it is free."""
        self._take(fcntl.LOCK_EX)

    def release(self) -> None:
        """Let the lock go."""
        self._file.close()

    def _take(self, how: int) -> bool:
        """Lock the file that the path names; whoever had the lock before may have removed his."""
        while True:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("w")
                fcntl.flock(self._file, how)
                if os.fstat(self._file.fileno()).st_ino == self.path.stat().st_ino:
                    return True
            except FileNotFoundError:
                continue
            except BlockingIOError:
                return False
            except OSError as error:
                raise UserError(f"{self.path}: no lock ({error.strerror}); mount the disk with `flock`.") from None
            self._file.close()


def sha256(path: Path) -> str:
    """sha256 of a file's bytes, or of a directory's names and file hashes in order; hidden entries do not count."""
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path)))
        listing = "".join(f"{file.relative_to(path).as_posix()} {sha256(file)}\n" for file in files)
        return hashlib.sha256(listing.encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verified(path: Path, expected: str, key: str) -> Path:
    """`path`, after its sha256 was found to be `expected`; raises `UserError` naming the config key otherwise."""
    if not path.exists():
        raise UserError(f"{path}: no such file; put it there or change `{key}.path`.")
    found = sha256(path)
    if found != expected:
        raise UserError(
            f"{path}: sha256 is {found}, `{key}.sha256` says {expected}; fetch it again or correct the key."
        )
    return path


def _aside(path: Path) -> Path:
    """Where a file or directory is made; the next attempt after a kill starts by replacing what is there."""
    return path.with_name(f".{path.name}.tmp")


def _hidden(relative: Path) -> bool:
    return any(part.startswith(".") for part in relative.parts)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run the stage that makes it.") from None


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """A full or read-only disk as one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        raise UserError(f"{path}: cannot be written ({error.strerror}); make room, then run again.") from error
