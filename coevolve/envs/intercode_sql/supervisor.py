"""A program that runs one server for the process holding its standard input, and cleans up however that process ends.

`supervisor.py DIRECTORY UID GID MEMORY TEMPORARY COMMAND...` (UID -1: keep the current user) prints the server's
process id and, once the server has ended, its return code. When standard input closes, it kills the server and removes
the directory. If the server's resident memory passes MEMORY bytes, or its temporary files TEMPORARY bytes, it prints
`LIMIT_PASSED` and kills the server. If the supervisor is killed, the kernel kills the server. The server writes
DIRECTORY/log.
"""

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
from typing import Any

PR_SET_PDEATHSIG = 1
#: Signals that a terminal or a batch system sends to a whole process group; the supervisor must outlive its parent.
GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: 300 sessions need more than the usual 1,024. The limit is finite because servers allocate memory for each possible
#: file, and containers may allow a billion.
OPEN_FILES = 20_000
LIMIT_PASSED = "limit passed"
#: Seconds between two checks of memory, and memory checks for each check of the files. Servers were seen to allocate
#: up to 500 MB per second.
CHECK_SECONDS = 0.1
CHECKS_PER_FILE_CHECK = 5
#: One temporary file may take this share of the bytes of all; the statement that writes more gets an error.
FILE_SHARE = 4
#: More than the largest file of the data directory.
MIN_FILE_BYTES = 64 << 20
#: The allocators (glibc's, or tcmalloc of a package) return the memory of a closed connection to the system.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "524288",
    "MALLOC_TRIM_THRESHOLD_": "4194304",
    "TCMALLOC_RELEASE_RATE": "10",
}


def main(directory: Path, numbers: list[int], command: list[str]) -> None:
    """Run `command` until it ends, passes a limit, or standard input closes."""
    uid, gid, memory, temporary = numbers
    for number in GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, OPEN_FILES),) * 2)
    server = _start_server(directory, uid, gid, max(temporary // FILE_SHARE, MIN_FILE_BYTES), command)
    _write_line(server.pid)
    ends = [sys.stdin, os.pidfd_open(server.pid)]
    checks = 0
    while not select.select(ends, [], [], CHECK_SECONDS)[0]:
        checks += 1
        files_due = checks % CHECKS_PER_FILE_CHECK == 0
        if resident_bytes(server.pid) > memory or (files_due and temporary_bytes(server.pid, directory) > temporary):
            # Before the kill: whoever loses a connection by it must find the reason.
            _write_line(LIMIT_PASSED)
            break
    server.kill()
    _write_line(server.wait())
    sys.stdin.read()
    shutil.rmtree(directory, ignore_errors=True)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def temporary_bytes(pid: int, directory: Path) -> int:
    """Bytes on disk of a server's open temporary files, most of which have no name any more; 0 if it has ended."""
    parts = (f"{directory}/tmp/", "/#innodb_temp/", "/ibtmp")
    total = 0
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                path = str(link.readlink())
                if any(part in path for part in parts):
                    total += link.stat().st_blocks * 512
    return total


def _start_server(directory: Path, uid: int, gid: int, file_bytes: int, command: list[str]) -> subprocess.Popen[bytes]:
    # The time zone is that of upstream's MySQL container.
    environment = {"PATH": os.defpath, "TZ": "UTC", "LC_ALL": "C", **ALLOCATOR}
    user: dict[str, Any] = {"user": uid, "group": gid, "extra_groups": []} if uid >= 0 else {}
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=directory,
            preexec_fn=lambda: _prepare(file_bytes),
            **user,
        )


def _write_line(line: object) -> None:
    """Write `line` to standard output; the parent process may have ended already."""
    with contextlib.suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), f"{line}\n".encode())


def _prepare(file_bytes: int) -> None:
    """In the server process: die with the supervisor, restore the signal handlers, and limit the size of files.

    Runs after the change of user, which would clear the parent-death signal.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in GROUP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    # A write beyond the limit is then an error of the statement instead of the end of the server.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    lower = [limit for limit in resource.getrlimit(resource.RLIMIT_FSIZE) if limit >= 0]
    resource.setrlimit(resource.RLIMIT_FSIZE, (min(file_bytes, *lower),) * 2 if lower else (file_bytes,) * 2)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(number) for number in sys.argv[2:6]], sys.argv[6:])
