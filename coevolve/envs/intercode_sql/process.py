"""A server's process in a private directory of its own; both are gone when this process is, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from coevolve.envs.intercode_sql import watcher
from coevolve.errors import UserError

PREFIX = "coevolve-sql-"
#: A socket's path holds at most 107 bytes; what comes after the directory for temporary files takes 40.
LONGEST_BASE = 67
#: A directory younger than this may not be locked yet.
YOUNG_SECONDS = 60.0


class Directory:
    """A private directory, the server's own if we are root; locked until the last process that uses it has ended.

    Raises `UserError` where none can be made.
    """

    def __init__(self) -> None:
        try:
            _remove_stale()
            self._make()
        except OSError as error:
            place = tempfile.gettempdir()
            raise UserError(f"{place}: no place for a server ({error}); set TMPDIR elsewhere.") from error

    def _make(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_base()))
        self.lock = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.socket = self.path / "mysqld.sock"
        self.data = self.path / "data"
        self.begin = self.path / "begin.sql"
        self.log = self.path / "log"
        self.stdin = self.path / "stdin"
        self.stdin.touch()
        (self.path / "tmp").mkdir()
        own(self.path, self.path / "tmp")

    def last_words(self) -> str:
        """The last errors the server wrote on standard error, or else its last lines; on one line."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        errors = [line for line in lines if "ERROR" in line]
        return " | ".join((errors or lines)[-3:]) or "nothing was logged"

    def remove(self) -> None:
        """Remove the directory; harmless when called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.lock >= 0:
            os.close(self.lock)
        self.lock = -1


class Process:
    """A running server; takes over `directory`, which is removed with it."""

    def __init__(self, command: Sequence[str], directory: Directory) -> None:
        self.directory = directory
        uid, gid = unprivileged() or (-1, -1)
        with directory.log.open("ab") as log:
            self._watcher = subprocess.Popen(
                [sys.executable, "-I", "-S", watcher.__file__, directory.path, str(uid), str(gid), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                pass_fds=(directory.lock,),
                bufsize=0,
            )
        assert self._watcher.stdout is not None and self._watcher.stdin is not None
        self._said, self._hold = self._watcher.stdout, self._watcher.stdin
        self.pid = int(self._said.readline() or 0)

    def ended(self, within: float = 0.0) -> bool:
        """Whether the server has ended; waits for that for at most `within` seconds."""
        # Unlike `select.select`, this works in a kit with more than 1,024 open files.
        said = select.poll()
        said.register(self._said, select.POLLIN)
        return bool(said.poll(within * 1000))

    def code(self) -> int | None:
        """The return code of the server, which has ended; None if the watcher was killed with it."""
        said = self._said.readline()
        return int(said) if said else None

    def end(self) -> None:
        """Kill the server, which has nothing to save, and remove its directory."""
        self._hold.close()
        self._watcher.wait()
        self._said.close()
        self.directory.remove()


def unprivileged() -> tuple[int, int] | None:
    """User and group id of `nobody` if we are root, None if we have no privileges to drop."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def own(*paths: Path) -> None:
    """Give `paths` to the user the server runs as."""
    if ids := unprivileged():
        for path in paths:
            os.chown(path, *ids)


def closed(folder: Path) -> bool:
    """Whether the server, which is somebody else if we are root, cannot enter `folder`."""
    return unprivileged() is not None and not all(step.stat().st_mode & 0o001 for step in (folder, *folder.parents))


def _base() -> Path:
    """The directory for temporary files, or /tmp if that one's path is too long or closed to the server."""
    base = Path(tempfile.gettempdir())
    return Path("/tmp") if closed(base) or len(os.fsencode(base)) > LONGEST_BASE else base


def _remove_stale() -> None:
    """Remove directories whose owner and watcher were killed."""
    for path in _base().glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), _locked(path):
            if path.stat().st_uid in _our_uids() and time.time() - path.stat().st_mtime > YOUNG_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a directory that nobody holds; raises `OSError` if somebody does."""
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _our_uids() -> tuple[int, ...]:
    return (os.geteuid(), *(unprivileged() or ())[:1])
