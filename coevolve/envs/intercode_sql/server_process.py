"""A server process with its options, in a private directory; both are removed when this process ends, in any way."""

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
from collections.abc import Sequence
from pathlib import Path

from coevolve.envs.intercode_sql import supervisor
from coevolve.envs.intercode_sql.config import SqlServerConfig
from coevolve.envs.intercode_sql.server_program import DEFAULT_CONFIG, ServerProgram
from coevolve.errors import UserError

PREFIX = "coevolve-sql-"
#: A socket's path holds at most 107 bytes, of which 40 follow the directory for temporary files.
MAX_BASE_LENGTH = 67
#: A younger directory may not be locked yet.
MIN_STALE_SECONDS = 60.0
#: The account of all sessions. It can only read, and has no password: only the kit can enter the socket's directory.
ACCOUNT = "coevolve"
#: Options of every server. Defaults that affect results are MySQL 8's of 2023, except table statistics, which must not
#: change between runs. The other options keep servers small and isolated, and avoid syncing data that is discarded.
OPTIONS = (
    "--lower-case-table-names=1",
    "--innodb-stats-auto-recalc=OFF",
    "--skip-networking",
    "--skip-name-resolve",
    "--skip-log-bin",
    "--local-infile=OFF",
    "--performance-schema=OFF",
    "--max-connections=400",
    "--back-log=400",
    "--max-allowed-packet=1M",
    "--innodb-buffer-pool-size=32M",
    "--innodb-buffer-pool-dump-at-shutdown=OFF",
    "--innodb-buffer-pool-load-at-startup=OFF",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=OFF",
    # The kernel's limit on native asynchronous I/O requests allows only about 25 servers.
    "--innodb-use-native-aio=OFF",
    "--mysqlx=OFF",
    "--event-scheduler=OFF",
    "--secure-file-priv=NULL",
    "--innodb-redo-log-capacity=8M",
    "--innodb-flush-method=nosync",
    "--temptable-max-ram=64M",
    "--auto-generate-certs=OFF",
    "--caching-sha2-password-auto-generate-rsa-keys=OFF",
    # By default their names contain the machine's.
    "--general-log-file=general.log",
    "--slow-query-log-file=slow.log",
    "--relay-log=relay",
)
#: The server would draw its id. Content of the file `auto.cnf` in the data directory.
SERVER_ID = "[auto]\nserver-uuid=c0e701fe-0000-4000-8000-000000000001\n"
#: Executed after the dump, which creates an administrator account. Only the reading account remains usable.
#: MySQL's cost model distinguishes pages in memory from pages on disk, so that earlier statements would affect query
#: plans and with them the order of rows. Here both have the cost of a page in memory.
TEMPLATE_STATEMENTS = (
    "UPDATE mysql.engine_cost SET cost_value = 0.25 WHERE cost_name = 'io_block_read_cost'",
    "DROP USER IF EXISTS 'admin'@'%'",
    f"CREATE USER '{ACCOUNT}'@'localhost'",
    f"GRANT SELECT, SHOW VIEW ON *.* TO '{ACCOUNT}'@'localhost'",
    "ALTER USER 'root'@'localhost' ACCOUNT LOCK",
)


class ServerDirectory:
    """A private directory of a server; locked until the last process that uses it has ended.

    It belongs to the user that the server runs as. Raises `UserError` if it cannot be created.
    """

    def __init__(self) -> None:
        try:
            _remove_stale_directories()
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_base_directory()))
            self.lock_fd = os.open(self.path, os.O_RDONLY)
            fcntl.flock(self.lock_fd, fcntl.LOCK_EX)
            (self.path / "tmp").mkdir()
            chown_to_server_user(self.path, self.path / "tmp")
        except OSError as error:
            base = tempfile.gettempdir()
            raise UserError(f"{base}: no directory for a server can be made ({error}); set TMPDIR elsewhere.") from None
        self.socket = str(self.path / "mysqld.sock")
        self.data = self.path / "data"
        self.init_file = self.path / "begin.sql"
        self.log = self.path / "log"

    def last_log_lines(self) -> str:
        """The last errors in the server's log, or else its last lines, joined into one line."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        errors = [line for line in lines if "ERROR" in line]
        return " | ".join((errors or lines)[-3:]) or "nothing was logged"

    def remove(self) -> None:
        """Remove the directory; calling it again has no effect."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.lock_fd >= 0:
            os.close(self.lock_fd)
        self.lock_fd = -1


class ServerProcess:
    """A running server under a supervisor process; `directory` is removed with it.

    The server is ended when its resident memory passes `config.memory_mb`, or its temporary files
    `config.temporary_mb`, in MiB.
    """

    def __init__(
        self, command: Sequence[str], directory: ServerDirectory, config: SqlServerConfig = DEFAULT_CONFIG
    ) -> None:
        self.directory = directory
        self._last_line: bytes | None = None
        numbers = (*(server_user() or (-1, -1)), config.memory_mb << 20, config.temporary_mb << 20)
        program = [sys.executable, "-I", "-S", supervisor.__file__, str(directory.path), *map(str, numbers)]
        with directory.log.open("ab") as log:
            self._supervisor = subprocess.Popen(
                [*program, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                pass_fds=(directory.lock_fd,),
                bufsize=0,
            )
        assert self._supervisor.stdout is not None and self._supervisor.stdin is not None
        self._output, self._input = self._supervisor.stdout, self._supervisor.stdin
        self.pid = int(self._output.readline() or 0)

    def has_ended(self, within: float = 0.0) -> bool:
        """Whether the server has ended; waits at most `within` seconds for that."""
        if self._last_line is not None:
            return True
        # Unlike `select.select`, `poll` works in a process with more than 1,024 open files.
        poll = select.poll()
        try:
            poll.register(self._output, select.POLLIN)
        except ValueError:
            # Another thread has stopped the server.
            return True
        return bool(poll.poll(within * 1000))

    def return_code(self) -> int | None:
        """The return code of the server, which must have ended; None if the supervisor was killed too."""
        line = self._first_line_after_start()
        return int(line) if line.strip().isdigit() or line.startswith(b"-") else None

    def has_passed_limit(self) -> bool:
        """Whether the server was ended because it passed its limit of memory or of temporary files."""
        return self.has_ended() and self._first_line_after_start().decode().strip() == supervisor.LIMIT_PASSED

    def _first_line_after_start(self) -> bytes:
        if self._last_line is None:
            self._last_line = self._output.readline()
        return self._last_line

    def close(self) -> None:
        """Kill the server, which has no data to save, and remove its directory."""
        self._input.close()
        self._supervisor.wait()
        self._output.close()
        self.directory.remove()


def server_command(program: ServerProgram, directory: ServerDirectory, data: Path, *options: str) -> list[str]:
    """The command that starts `program` on the data directory `data`."""
    paths = (
        f"--datadir={data}",
        f"--socket={directory.socket}",
        f"--tmpdir={directory.path / 'tmp'}",
        f"--pid-file={directory.path / 'pid'}",
    )
    return [*program.command, "--no-defaults", *program.options, *OPTIONS, *paths, *options]


def statement_limits(config: SqlServerConfig) -> dict[str, int]:
    """Values of the server variables that limit a statement's time (in milliseconds) and rows, by name."""
    return {"max_execution_time": round(config.statement_seconds * 1000), "sql_select_limit": config.rows}


def server_user() -> tuple[int, int] | None:
    """User and group id of the server: those of `nobody` if this process is root's, None (its own) otherwise."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def chown_to_server_user(*paths: Path) -> None:
    """Make the server's user the owner of `paths`."""
    if ids := server_user():
        for path in paths:
            os.chown(path, *ids)


def is_inaccessible_to_server(folder: Path) -> bool:
    """Whether the server runs as another user who cannot enter `folder`."""
    return server_user() is not None and not all(step.stat().st_mode & 0o001 for step in (folder, *folder.parents))


def _base_directory() -> Path:
    """The directory for temporary files, or /tmp if its path is too long or the server cannot enter it."""
    base = Path(tempfile.gettempdir())
    too_long = len(os.fsencode(base)) > MAX_BASE_LENGTH
    return Path("/tmp") if is_inaccessible_to_server(base) or too_long else base


def _remove_stale_directories() -> None:
    """Remove directories whose owner and supervisor were both killed."""
    uids = (os.geteuid(), *(server_user() or ())[:1])
    for path in _base_directory().glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            handle = os.open(path, os.O_RDONLY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an OSError if another process holds the lock
            if path.stat().st_uid in uids and time.time() - path.stat().st_mtime > MIN_STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
