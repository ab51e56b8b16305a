"""However the process that started a server ends, server and directory end with it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from coevolve.envs.intercode_sql.config import SqlServerConfig
from coevolve.envs.intercode_sql.server_process import MIN_STALE_SECONDS, ServerDirectory

PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from coevolve.envs.intercode_sql.config import SqlServerConfig
from coevolve.envs.intercode_sql.server import DatabaseServer

# The strictest mask a user may have must not hide files from the server.
os.umask(0o077)
# A test run in the background ignores Ctrl-C, and so would its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
config, dump, ending = sys.argv[1:]
server = DatabaseServer(SqlServerConfig.model_validate_json(config), Path(dump))
server.connect()
print(server.pid, flush=True)
if ending == "close":
    server.close()
elif ending == "exception":
    raise RuntimeError("on purpose")
elif ending != "exit":
    time.sleep(3600)
"""


class Kit:
    """A process that has started a server, the server, and the supervisor between them."""

    def __init__(self, config: SqlServerConfig, dump: Path, ending: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, config.model_dump_json(), dump, ending],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.pid = int(self.process.stdout.readline())
        if ending.startswith("SIG"):
            self.server = psutil.Process(self.pid)
            self.supervisor = self.server.parent()
            self.directory = Path(self.server.cwd()).parent
            assert self.directory.name.startswith("coevolve-sql-")


@pytest.fixture
def kit(sql_config: SqlServerConfig, dump: Path):
    kits: list[Kit] = []

    def start(ending: str, config: SqlServerConfig = sql_config) -> Kit:
        kits.append(Kit(config, dump, ending))
        return kits[-1]

    yield start
    for kit in kits:
        with kit.process:
            kit.process.kill()


@pytest.mark.parametrize("ending", ["exit", "close", "exception"])
def test_a_kit_that_ends_leaves_no_server(kit, ending: str) -> None:
    started = kit(ending)
    started.process.wait()
    while psutil.pid_exists(started.pid):  # at last the test's time limit
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("ending", "everybody"), [("SIGTERM", False), ("SIGTERM", True), ("SIGINT", False), ("SIGKILL", False)]
)
def test_a_kit_that_is_ended_leaves_neither_server_nor_directory(kit, ending: str, everybody: bool) -> None:
    """Also where the supervisor gets the signal, too."""
    started = kit(ending)
    assert started.server.is_running()
    for process in (*[started.supervisor] * everybody, started.process):
        process.send_signal(getattr(signal, ending))
    psutil.wait_procs([started.server, started.supervisor])
    assert not started.directory.exists()


def test_mysql_ends_with_a_killed_kit(kit, sql_config: SqlServerConfig) -> None:
    started = kit("SIGKILL", sql_config)
    started.process.kill()
    psutil.wait_procs([started.server, started.supervisor])
    assert not started.directory.exists()


def test_what_a_kit_killed_with_its_supervisor_leaves_is_removed_by_the_next(kit) -> None:
    dead, living = kit("SIGKILL"), kit("SIGKILL")
    for process in (dead.supervisor, dead.process):
        process.kill()
    psutil.wait_procs([dead.server])
    for directory in (dead.directory, living.directory):
        long_ago = directory.stat().st_mtime - 2 * MIN_STALE_SECONDS
        os.utime(directory, (long_ago, long_ago))
    ServerDirectory().remove()
    assert not dead.directory.exists()
    assert living.directory.exists() and living.server.is_running()
