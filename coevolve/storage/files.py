"""Files that are whole or absent: written to a temporary name, then renamed; locks and hashes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from coevolve.errors import UserError


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that at any moment it is the old one or the new one; raises `UserError` on a full disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = _aside(path)
    try:
        with disk_errors(path), aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def directory(path: Path) -> Iterator[Path]:
    """A new directory that appears under `path` whole, when the block ends without an error; an old one is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = _aside(path)
    shutil.rmtree(aside, ignore_errors=True)
    try:
        with disk_errors(path):
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


def read_bytes(path: Path) -> bytes:
    """The bytes of a file that a stage makes; raises `UserError` if it is not there."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run the stage that makes it.") from None


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """A full or read-only disk as one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        raise UserError(f"{path}: cannot be written ({error.strerror}); make room, then run again.") from error
