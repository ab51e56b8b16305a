"""The database server of the sessions: a private one on the dump."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pymysql
from pymysql.constants import ER

from coevolve.envs.base import EnvError
from coevolve.envs.intercode_sql import data_directory
from coevolve.envs.intercode_sql import dump as dumps
from coevolve.envs.intercode_sql.config import SqlServerConfig
from coevolve.envs.intercode_sql.data_directory import DataDirectoryTemplate
from coevolve.envs.intercode_sql.server_process import (
    ACCOUNT,
    ServerDirectory,
    ServerProcess,
    chown_to_server_user,
    server_command,
    statement_limits,
)
from coevolve.envs.intercode_sql.server_program import find_server_program, mysql_identity
from coevolve.errors import UserError

logger = logging.getLogger(__name__)

#: Seconds beyond a statement's time limit after which a connection without a response is given up.
GRACE_SECONDS = 5.0
#: Error numbers from here on are raised by the client: the server did not respond.
MIN_CLIENT_ERROR = 2000

Connection: TypeAlias = "pymysql.Connection[pymysql.cursors.Cursor]"


class NoResponseError(EnvError):
    """The server does not respond to a connection attempt."""


class DatabaseServer(contextlib.AbstractContextManager["DatabaseServer"]):
    """A private server on the dump's databases, started at the first connection and restarted after a crash.

    Thread-safe. As a context manager it closes the server.
    """

    def __init__(self, config: SqlServerConfig, dump: Path) -> None:
        self.config = config
        self._dump = dump
        self._lock = threading.Lock()
        self._process: ServerProcess | None = None
        self._identity = ""
        self._sockets_past_limit: set[str] = set()
        self._copy_lock = threading.Lock()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def identity(self) -> str:
        """Name and version that the server reports, such as "MySQL 9.7.4"."""
        if not self._identity:
            with self.connect() as connection, connection.cursor() as cursor:
                cursor.execute("SELECT VERSION()")
                self._identity = mysql_identity(cursor.fetchall()[0][0])
        return self._identity

    @property
    def pid(self) -> int | None:
        """Process id of the private server, None if none is running."""
        process = self._process
        return process.pid if process and not process.has_ended() else None

    @property
    def socket(self) -> str | None:
        """The socket of the private server, which no server before or after it has; None if none is running."""
        process = self._process
        return process.directory.socket if process and not process.has_ended() else None

    def has_passed_limit(self, socket: str | None) -> bool:
        """Whether the private server at `socket` was ended because it passed its limit of memory or temporary files."""
        with self._lock:
            process = self._process
            if process is not None and process.directory.socket == socket and process.has_passed_limit():
                self._retire(process)
            return socket in self._sockets_past_limit

    @contextlib.contextmanager
    def private_copy(self) -> Iterator[DatabaseServer]:
        """Another server of the same configuration and data; one at a time, the others wait."""
        with self._copy_lock, DatabaseServer(self.config, self._dump) as server:
            yield server

    def connect(self, database: str = "") -> Connection:
        """A connection of the reading account, with autocommit and the configured limits; starts the server if needed.

        Raises `EnvError` if no server accepts the connection, `UserError` for an unknown database.
        """
        process = self._running_process()
        try:
            return self._open(database, process)
        except NoResponseError as error:
            logger.warning("the database server is restarted: %s", error)
            self._stop(process)
            return self._open(database, self._running_process())

    def close(self) -> None:
        """Stop the private server; calling it again has no effect. The next connection starts another server."""
        if self._process is not None:
            self._stop(self._process)

    def _open(self, database: str, process: ServerProcess) -> Connection:
        seconds = self.config.statement_seconds + GRACE_SECONDS
        try:
            return pymysql.connect(
                unix_socket=process.directory.socket,
                user=ACCOUNT,
                database=database or None,
                autocommit=True,
                read_timeout=seconds,
                write_timeout=seconds,
                ssl_disabled=True,  # preparing for TLS takes 50 times as long as connecting to a socket
            )
        except pymysql.MySQLError as error:
            if error.args[0] == ER.BAD_DB_ERROR:
                raise UserError(f"the database server has no database `{database}`; correct the task's.") from None
            kind = EnvError if error.args[0] < MIN_CLIENT_ERROR else NoResponseError
            raise kind(f"the database server refused a connection: {error.args[-1]}") from error

    def _running_process(self) -> ServerProcess:
        with self._lock:
            if self._process is not None and self._process.has_ended():
                self._retire(self._process)
            if self._process is None:
                self._process = start_server(self.config, self._dump)
            return self._process

    def _stop(self, process: ServerProcess) -> None:
        """Stop `process` unless another thread has already replaced it."""
        with self._lock:
            if self._process is process:
                self._retire(process)

    def _retire(self, process: ServerProcess) -> None:
        """Stop the current `process`; the next connection starts another one. The caller holds the lock."""
        if process.has_passed_limit():
            logger.warning("the database server has passed its limit of memory or of temporary files: it is restarted")
            self._sockets_past_limit.add(process.directory.socket)
        process.close()
        self._process = None


def start_server(config: SqlServerConfig, dump: Path) -> ServerProcess:
    """A server on a copy of the template for `dump`, after every table has been read once.

    If no server starts from the template, the template is built again, once; then `EnvError` is raised.
    """
    template = DataDirectoryTemplate(find_server_program(config), dump)
    try:
        return _start_on_copy(template, config)
    except EnvError as error:
        logger.warning("the database template is built again: %s", error)
        return _start_on_copy(template, config, rebuild=True)


def _start_on_copy(template: DataDirectoryTemplate, config: SqlServerConfig, rebuild: bool = False) -> ServerProcess:
    with contextlib.ExitStack() as undo:
        directory = ServerDirectory()
        undo.callback(directory.remove)
        template.copy(directory.data, rebuild)
        limits = statement_limits(config).items()
        directory.init_file.write_text("".join(f"SET GLOBAL {name} = {value};\n" for name, value in limits))
        chown_to_server_user(directory.init_file)
        options = (f"--init-file={directory.init_file}", "--super-read-only=ON")
        command = server_command(template.program, directory, directory.data, *options)
        process = ServerProcess(command, directory, config)
        undo.callback(process.close)
        _read_all_tables(process, template.dump)
        undo.pop_all()
    return process


def _read_all_tables(process: ServerProcess, dump: Path) -> None:
    """Read every table once; raises `EnvError` if one cannot be read."""
    with (
        data_directory.wait_until_ready(process, ACCOUNT) as connection,
        connection.cursor() as cursor,
    ):
        try:
            for table in data_directory.table_names(cursor, dumps.databases(dump)):
                cursor.execute(f"SELECT COUNT(*) FROM {table}")
        except pymysql.MySQLError as error:
            details = f"{error.args[-1]} {process.directory.last_log_lines()}"
            raise EnvError(f"the database server cannot read its data: {details}") from error
