"""Files that are whole or absent: written to a temporary name, then renamed; locks and hashes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from coevolve.errors import UserError


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that at any moment it is the old one or the new one; raises `UserError` on a full disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with disk_errors(path), temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON data, indented, with its keys in the order given."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


@contextlib.contextmanager
def directory(path: Path) -> Iterator[Path]:
    """A new directory, renamed to `path` when the block ends without an error; an existing one is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with disk_errors(path):
            temporary.mkdir()
            yield temporary
        if path.exists():
            shutil.rmtree(path)
        temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class ProcessLock:
    """An exclusive lock on a file; the kernel releases it when the process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # filelock's fallback, a marker file, would outlive a killed process.
        self._lock = FileLock(path, fallback_to_soft=False, thread_local=False)

    def acquire(self, *, wait: bool = False) -> bool:
        """Take the lock and return True; without `wait`, return False if another process holds it.

        Raises `UserError` where the file system has no locks.
        """
        while True:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._lock.acquire(blocking=wait)
            except Timeout:
                return False
            except FileNotFoundError:
                continue  # the previous holder removed the folder
            except OSError as error:
                raise UserError(f"{self.path}: no lock ({error.strerror}); mount the disk with `flock`.") from None
            return True

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()


def sha256(path: Path) -> str:
    """sha256 of a file's bytes, or of a directory's names and file hashes in order; hidden entries do not count."""
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path)))
        listing = "".join(f"{file.relative_to(path).as_posix()} {sha256(file)}\n" for file in files)
        return hashlib.sha256(listing.encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verified(path: Path, expected: str, key: str) -> Path:
    """`path`, if its sha256 is `expected`; raises `UserError` with the config key otherwise."""
    if not path.exists():
        raise UserError(f"{path}: no such file; put it there or change `{key}.path`.")
    actual = sha256(path)
    if actual != expected:
        raise UserError(
            f"{path}: sha256 is {actual}, but `{key}.sha256` is {expected}; fetch it again or correct the key."
        )
    return path


def read_bytes(path: Path) -> bytes:
    """The bytes of a file that a stage makes; raises `UserError` if the file does not exist."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run the stage that makes it.") from None


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn the errors of a full, read-only or forbidden disk into a `UserError`."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        raise UserError(f"{path}: cannot be written ({error.strerror}); make room, then run again.") from error


def _temporary(path: Path) -> Path:
    """The name under which `path` is written. It is fixed, so that a retry replaces what a killed process left."""
    return path.with_name(f".{path.name}.tmp")


def _hidden(relative: Path) -> bool:
    return any(part.startswith(".") for part in relative.parts)
