"""A program that runs one server for the process holding its standard input, and cleans up however that process ends.

`supervisor.py DIRECTORY UID GID COMMAND...` (UID -1: keep the current user) prints the server's process id and, once
the server has ended, its return code. When standard input closes, it kills the server and removes the directory. If the
supervisor is killed, the kernel kills the server. The server reads DIRECTORY/stdin and writes DIRECTORY/log.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
#: Signals that a terminal or a batch system sends to a whole process group; the supervisor must outlive its parent.
GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: 300 sessions need more than the usual 1,024. The limit is finite because servers allocate memory for each possible
#: file, and containers may allow a billion.
OPEN_FILES = 20_000


def main(directory: Path, uid: int, gid: int, command: list[str]) -> None:
    """Run `command` until it ends or standard input closes."""
    for number in GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, OPEN_FILES),) * 2)
    server = _start_server(directory, uid, gid, command)
    _write_line(server.pid)
    select.select([sys.stdin, os.pidfd_open(server.pid)], [], [])
    server.kill()
    _write_line(server.wait())
    sys.stdin.read()
    shutil.rmtree(directory, ignore_errors=True)


def _start_server(directory: Path, uid: int, gid: int, command: list[str]) -> subprocess.Popen[bytes]:
    # The time zone is that of upstream's MySQL container.
    environment = {"PATH": os.defpath, "TZ": "UTC", "LC_ALL": "C"}
    groups: list[int] = []
    user = (uid, gid, groups) if uid >= 0 else (None, None, None)
    with (directory / "stdin").open("rb") as stdin, (directory / "log").open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=directory,
            user=user[0],
            group=user[1],
            extra_groups=user[2],
            preexec_fn=_set_signals,
        )


def _write_line(number: int) -> None:
    """Write `number` to standard output; the parent process may have ended already."""
    with contextlib.suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), f"{number}\n".encode())


def _set_signals() -> None:
    """In the server process: die with the supervisor, and restore the signal handlers.

    Runs after the change of user, which would clear the parent-death signal.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in GROUP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
