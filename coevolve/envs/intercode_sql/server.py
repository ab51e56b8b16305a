"""A database server for the kit's sessions: a private one on the dump, or one at an address the user gives."""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import pymysql

from coevolve.envs.base import EnvError
from coevolve.envs.intercode_sql import address, datadir, engine, settings
from coevolve.envs.intercode_sql import dump as dumps
from coevolve.envs.intercode_sql.config import Flavour, SqlServerConfig
from coevolve.envs.intercode_sql.process import Directory, Process, own
from coevolve.errors import UserError

logger = logging.getLogger(__name__)

#: What a connection waits beyond a statement's time limit before it gives a silent server up.
GRACE_SECONDS = 5.0
UNKNOWN_DATABASE = 1049
#: Error numbers from here on are the client's own: the server did not answer.
CLIENT_ERRORS = 2000

Connection: TypeAlias = "pymysql.Connection[pymysql.cursors.Cursor]"


class SilentError(EnvError):
    """The server does not answer at all."""


class Server:
    """A private server on the dump's databases, started when first needed and again after it died.

    With `config.address` nothing is started: connections go there, once the server was found to hold the databases and
    the account to be unable to write. Any number of threads may connect. A context manager that closes the server.
    """

    def __init__(self, config: SqlServerConfig, dump: Path) -> None:
        self.config = config
        self._dump = dump
        self._lock = threading.Lock()
        self._process: Process | None = None
        self._version: tuple[Flavour, str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def identity(self) -> str:
        """Name and version as the server itself says: "MySQL 9.7.4", "MariaDB 10.11.18, non-comparable"."""
        return engine.identity(*self._asked_version())

    @property
    def comparable(self) -> bool:
        """Whether results may stand beside those of MySQL."""
        return self._asked_version()[0] == "mysql"

    @property
    def pid(self) -> int | None:
        """Process id of the private server, None if none is running."""
        process = self._process
        return process.pid if process else None

    def databases(self) -> tuple[str, ...]:
        """The dump's databases, spelled as there."""
        return dumps.databases(self._dump)

    def connect(self, database: str = "") -> Connection:
        """A connection of the reading account, with autocommit and the configured limits; starts the server if need be.

        Raises `EnvError` if there is no server to be had, `UserError` for a database it does not hold.
        """
        if self.config.address is not None:
            return self._connect_to_address(self.config.address, database)
        process = self._running()
        try:
            return self._open(database, **_socket(process))
        except SilentError as error:
            logger.warning("the database server is started again: %s", error)
            self._end(process)
            return self._open(database, **_socket(self._running()))

    def close(self) -> None:
        """End the private server; harmless when called twice. The next connection would start it again."""
        if self._process is not None:
            self._end(self._process)

    def _asked_version(self) -> tuple[Flavour, str]:
        if self._version is None:
            with self.connect() as connection:
                self._version = _version(connection)
        return self._version

    def _connect_to_address(self, place: str, database: str) -> Connection:
        connection = self._open(database, **address.arguments(place))
        try:
            with self._lock:
                if self._version is None:
                    address.check(connection, place, self.databases())
                    self._version = self._listed(_version(connection))
            with connection.cursor() as cursor:
                for name, value in settings.limits(self._version[0], self.config).items():
                    cursor.execute(f"SET SESSION {name} = {value}")
        except pymysql.MySQLError as error:
            raise EnvError(f"the database server at {place} failed: {error.args[-1]}") from error
        return connection

    def _listed(self, version: tuple[Flavour, str]) -> tuple[Flavour, str]:
        """`version`, if the configuration takes such a server."""
        if version[0] not in self.config.engine:
            found = engine.identity(*version)
            raise UserError(f"`server.address`: {found} answers there, which `server.engine` does not list.")
        return version

    def _open(self, database: str, **place: Any) -> Connection:
        seconds = self.config.statement_seconds + GRACE_SECONDS
        try:
            return pymysql.connect(
                **place,
                database=database or None,
                autocommit=True,
                read_timeout=seconds,
                write_timeout=seconds,
                # Preparing for TLS takes 50 times as long as connecting to a socket.
                ssl_disabled="unix_socket" in place,
            )
        except pymysql.MySQLError as error:
            if error.args[0] == UNKNOWN_DATABASE:
                raise UserError(f"the database server holds no database `{database}`; correct the task's.") from None
            kind = EnvError if error.args[0] < CLIENT_ERRORS else SilentError
            raise kind(f"the database server took no connection: {error.args[-1]}") from error

    def _running(self) -> Process:
        with self._lock:
            if self._process is not None and self._process.ended():
                self._process.end()
                self._process = None
            if self._process is None:
                self._process = start(self.config, self._dump)
            return self._process

    def _end(self, process: Process) -> None:
        """End `process` unless another thread has done so and started the next."""
        with self._lock:
            if self._process is process:
                self._process.end()
                self._process = None


def start(config: SqlServerConfig, dump: Path) -> Process:
    """A server on a copy of the template for `dump`, every table of which has answered.

    A template that no server starts from is made anew, once; raises `EnvError` if that does not help.
    """
    found = engine.find(config)
    made = datadir.Template(found, dump)
    try:
        return _start_copy(found, made, config, dump)
    except EnvError as error:
        logger.warning("the database template is made again: %s", error)
        made.discard()
        return _start_copy(found, made, config, dump)


def _start_copy(found: engine.Engine, made: datadir.Template, config: SqlServerConfig, dump: Path) -> Process:
    with contextlib.ExitStack() as undo:
        directory = Directory()
        undo.callback(directory.remove)
        made.copy(directory.data)
        limits = settings.limits(found.flavour, config).items()
        directory.begin.write_text("".join(f"SET GLOBAL {name} = {value};\n" for name, value in limits))
        own(directory.begin)
        options = (f"--init-file={directory.begin}", settings.READ_ONLY[found.flavour])
        process = Process(settings.command(found, directory, directory.data, *options), directory)
        undo.callback(process.end)
        _read_all(process, dump)
        undo.pop_all()
    return process


def _read_all(process: Process, dump: Path) -> None:
    """Read every table once; raises `EnvError` if one cannot be read."""
    with datadir.wait_until_ready(process, settings.ACCOUNT) as connection, connection.cursor() as cursor:
        try:
            for table in datadir.tables(cursor, dumps.databases(dump)):
                cursor.execute(f"SELECT COUNT(*) FROM {table}")
        except pymysql.MySQLError as error:
            words = f"{error.args[-1]} {process.directory.last_words()}"
            raise EnvError(f"the database server cannot read its data: {words}") from error


def _version(connection: Connection) -> tuple[Flavour, str]:
    with connection.cursor() as cursor:
        # The greeting of MariaDB begins with the version of a MySQL that it wants to be taken for.
        cursor.execute("SELECT VERSION()")
        return engine.parse_version(cursor.fetchall()[0][0])


def _socket(process: Process) -> dict[str, Any]:
    return {"unix_socket": str(process.directory.socket), "user": settings.ACCOUNT}
