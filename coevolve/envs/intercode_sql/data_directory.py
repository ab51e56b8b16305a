"""The initial data directory of every server: built once from the dump, cached, and copied for each server."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pymysql
from pymysql.constants import CLIENT

from coevolve.envs.base import EnvError
from coevolve.envs.intercode_sql import dump as dumps
from coevolve.envs.intercode_sql.server_process import (
    OPTIONS,
    SERVER_ID,
    TEMPLATE_STATEMENTS,
    ServerDirectory,
    ServerProcess,
    chown_to_server_user,
    is_inaccessible_to_server,
    server_command,
)
from coevolve.envs.intercode_sql.server_program import ServerProgram, cache_directory
from coevolve.errors import UserError
from coevolve.storage import files, folders, locks

START_SECONDS = 60.0
#: Free bytes needed while a template is built; the finished template takes less than half of them.
MIN_FREE_BYTES = 250 << 20
#: The dump is sent as one packet, which is larger than the packets that agents may send.
LOADING_OPTION = "--max-allowed-packet=1G"


class DataDirectoryTemplate:
    """The cached data directory of a dump on a server program; its path contains a digest of all that it depends on."""

    def __init__(self, program: ServerProgram, dump: Path) -> None:
        if not dump.exists():
            raise UserError(f"{dump}: no such file; run the stage that fetches it, or correct `dump.path`.")
        self.program, self.dump = program, dump
        key = (files.sha256(dump), program.identity, *OPTIONS, SERVER_ID, *TEMPLATE_STATEMENTS)
        digest = hashlib.sha256("\n".join(key).encode()).hexdigest()[:16]
        self.path = cache_directory() / "templates" / f"mysql-{digest}"

    def copy(self, target: Path, rebuild: bool = False) -> None:
        """Copy the template to `target`; build it first if it is absent, or with `rebuild`.

        Concurrent processes build it once: the others wait for the lock. Raises `UserError` if the cache is unusable.
        """
        _create_cache_folder(self.path.parent)
        lock = locks.ProcessLock(self.path.with_name(f"{self.path.name}.lock"))
        lock.acquire(wait=True)
        try:
            if rebuild or not self.path.is_dir():
                self._build()
            _copy(self.path / "data", target)
        finally:
            lock.release()

    def _build(self) -> None:
        free = shutil.disk_usage(self.path.parent).free
        if free < MIN_FREE_BYTES:
            raise UserError(
                f"{self.path.parent}: {free >> 20} MB are free, a database template takes {MIN_FREE_BYTES >> 20}; "
                "make room or set COEVOLVE_CACHE elsewhere."
            )
        with folders.directory(self.path) as partial:
            partial.chmod(0o711)
            (partial / "data").mkdir()
            chown_to_server_user(partial / "data")
            _initialise(self.program, partial / "data")
            _load(self.program, partial / "data", self.dump)


def wait_until_ready(process: ServerProcess, user: str) -> pymysql.Connection[pymysql.cursors.Cursor]:
    """A connection of `user` as soon as the server accepts one; raises `EnvError` with its log if it does not start."""
    deadline = time.monotonic() + START_SECONDS
    while not process.has_ended(within=0.02) and time.monotonic() < deadline:
        try:
            return pymysql.connect(
                unix_socket=process.directory.socket,
                user=user,
                read_timeout=START_SECONDS,
                ssl_disabled=True,
                client_flag=CLIENT.MULTI_STATEMENTS,
            )
        except pymysql.OperationalError:
            continue
    limit = "it passed `server.memory_mb` or `server.temporary_mb`" if process.has_passed_limit() else ""
    raise EnvError(f"the database server did not start: {limit or process.directory.last_log_lines()}")


def table_names(cursor: pymysql.cursors.Cursor, databases: Sequence[str]) -> list[str]:
    """All tables of `databases`, each as a quoted `database`.`table`."""
    cursor.execute(
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema IN %s ORDER BY 1, 2",
        [[name.lower() for name in databases]],
    )
    return [f"`{schema}`.`{table}`" for schema, table in cursor.fetchall()]


def _create_cache_folder(folder: Path) -> None:
    """Create the cache and `folder` in it where they are missing, and check that the server can enter them."""
    try:
        for created in (folder.parent, folder):
            if not created.exists():
                created.mkdir(parents=True, exist_ok=True)
                # The user's umask may have removed permissions that the server needs.
                created.chmod(0o755)
        if not os.access(folder, os.W_OK):
            raise PermissionError("no permission to write")
    except OSError as error:
        raise UserError(f"{folder}: cannot be used ({error}); set COEVOLVE_CACHE to a directory of yours.") from None
    if is_inaccessible_to_server(folder):
        raise UserError(
            f"{folder}: the server runs as `nobody`, who cannot enter it; change its mode or set COEVOLVE_CACHE."
        )


def _initialise(program: ServerProgram, data: Path) -> None:
    """Write the server's system tables to the empty directory `data`."""
    directory = ServerDirectory()
    command = server_command(program, directory, data, "--initialize-insecure")
    with contextlib.closing(ServerProcess(command, directory)) as process:
        _wait_for_success(process, f"initialise {data}")
    (data / "auto.cnf").write_text(SERVER_ID)
    chown_to_server_user(data / "auto.cnf")


def _wait_for_success(process: ServerProcess, task: str) -> None:
    code = process.return_code() if process.has_ended(within=START_SECONDS) else None
    if code != 0:
        log = process.directory.last_log_lines()
        raise EnvError(f"the database server did not {task} (return code {code}): {log}")


def _load(program: ServerProgram, data: Path, dump: Path) -> None:
    """Load the dump, compute the tables' statistics, and leave only the reading account."""
    directory = ServerDirectory()
    command = server_command(program, directory, data, LOADING_OPTION)
    with contextlib.closing(ServerProcess(command, directory)) as process:
        try:
            with wait_until_ready(process, "root") as connection, connection.cursor() as cursor:
                _execute_all(cursor, dump.read_text(encoding="utf-8"))
                for table in table_names(cursor, dumps.databases(dump)):
                    _execute_all(cursor, f"ANALYZE TABLE {table}")
                _execute_all(cursor, ";".join(TEMPLATE_STATEMENTS))
                _execute_all(cursor, "SHUTDOWN")
        except pymysql.MySQLError as error:
            log = directory.last_log_lines()
            raise EnvError(f"the database server did not load {dump}: {error}; {log}") from error
        _wait_for_success(process, f"load {dump}")


def _execute_all(cursor: pymysql.cursors.Cursor, statements: str) -> None:
    """Execute statements separated by semicolons, and discard their results."""
    cursor.execute(statements)
    while cursor.nextset():
        pass


def _copy(source: Path, target: Path) -> None:
    """Copy a directory with owners and sparse files, sharing blocks where the file system supports it."""
    done = subprocess.run(["cp", "--archive", "--reflink=auto", source, target], capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(target, ignore_errors=True)
        raise UserError(f"{target}: cannot be written ({done.stderr.strip()[-200:]}); make room, then run again.")
