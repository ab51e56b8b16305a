"""A program: runs one server for the process that holds its standard input, and cleans up however that process ends.

`watcher.py DIRECTORY UID GID COMMAND...` (UID -1: as we are) prints the server's process id and, once the server has
ended, its return code. When standard input closes it kills the server and removes the directory. Should the watcher
itself be killed, the kernel kills the server. The server reads DIRECTORY/stdin and writes DIRECTORY/log.
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
#: What a terminal or a batch system sends to everybody at once; the watcher outlives the one it watches for.
SHARED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: 300 sessions need more than the usual 1,024; servers set memory aside for all they may have, in containers a billion.
OPEN_FILES = 20_000


def main(directory: Path, uid: int, gid: int, command: list[str]) -> None:
    """Run `command` until it ends or standard input closes."""
    for number in SHARED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, OPEN_FILES),) * 2)
    server = _server(directory, uid, gid, command)
    _say(server.pid)
    select.select([sys.stdin, os.pidfd_open(server.pid)], [], [])
    server.kill()
    _say(server.wait())
    sys.stdin.read()
    shutil.rmtree(directory, ignore_errors=True)


def _server(directory: Path, uid: int, gid: int, command: list[str]) -> subprocess.Popen[bytes]:
    # The time zone is that of the container upstream ran MySQL in.
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
            preexec_fn=_prepare,
        )


def _say(number: int) -> None:
    """Tell the kit, if it is still there."""
    with contextlib.suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), f"{number}\n".encode())


def _prepare() -> None:
    """In the server, after the change of user, which would undo it: die with the watcher; heed signals again."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in SHARED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
