"""However the process that started a server ends, server and directory end with it."""

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from envs.endings import ending
from envs.intercode_sql.sections import START_SERVER

from coevolve.envs.intercode_sql.server_process import MIN_STALE_SECONDS, ServerDirectory


@dataclass
class Kit:
    """A process that has started a server, the server, the supervisor between them, and the server's directory."""

    process: subprocess.Popen[str]
    server: psutil.Process
    supervisor: psutil.Process
    directory: Path


@pytest.fixture
def kit(dump):
    with contextlib.ExitStack() as stack:

        def start():
            process, pid = stack.enter_context(ending(START_SERVER, "signal", dump))
            server = psutil.Process(pid)
            directory = Path(server.cwd()).parent
            assert directory.name.startswith("coevolve-sql-")
            return Kit(process, server, server.parent(), directory)

        yield start


@pytest.mark.parametrize("how", ["exit", "close", "exception"])
def test_a_kit_that_ends_leaves_no_server(dump, how):
    with ending(START_SERVER, how, dump) as (process, server):
        process.wait()
    while psutil.pid_exists(server):  # at last the test's time limit
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("how", "everybody"), [("SIGTERM", False), ("SIGTERM", True), ("SIGINT", False), ("SIGKILL", False)]
)
def test_a_kit_that_is_ended_leaves_neither_server_nor_directory(kit, how, everybody):
    """Also where the supervisor gets the signal, too."""
    started = kit()
    assert started.server.is_running()
    for process in (*[started.supervisor] * everybody, started.process):
        process.send_signal(getattr(signal, how))
    psutil.wait_procs([started.server, started.supervisor])
    assert not started.directory.exists()


def test_what_a_kit_killed_with_its_supervisor_leaves_is_removed_by_the_next(kit):
    dead, living = kit(), kit()
    for process in (dead.supervisor, dead.process):
        process.kill()
    psutil.wait_procs([dead.server])
    for directory in (dead.directory, living.directory):
        long_ago = directory.stat().st_mtime - 2 * MIN_STALE_SECONDS
        os.utime(directory, (long_ago, long_ago))
    ServerDirectory().remove()
    assert not dead.directory.exists()
    assert living.directory.exists() and living.server.is_running()
