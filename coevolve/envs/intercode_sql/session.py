"""One agent's session on the server, in which every statement, whatever it is, ends with a result."""

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from socket import gethostname
from typing import Any

import pymysql
from pymysql import converters
from pymysql.constants import ER, FIELD_TYPE
from pymysql.cursors import SSCursor

from coevolve.envs.base import EnvError
from coevolve.envs.intercode_sql import refusals
from coevolve.envs.intercode_sql.server import GRACE_SECONDS, Connection, DatabaseServer

#: Longer statements, in characters, are not sent: the server closes a connection that sends over a megabyte.
MAX_STATEMENT_LENGTH = 250_000
#: A longer result is truncated; in characters of text, plus eight for every cell.
MAX_RESULT_LENGTH = 16_000_000
#: Error numbers of a statement that another session ended.
INTERRUPTION_ERRORS = (ER.QUERY_INTERRUPTED, ER.SERVER_SHUTDOWN)

TIMED_OUT = "Query execution was interrupted, maximum statement execution time exceeded"
INTERRUPTED = "Query execution was interrupted"
NOT_UTF8 = "The result cannot be read as UTF-8"
TOO_LONG = f"A statement may have {MAX_STATEMENT_LENGTH:,} characters"
REFUSED = "Access denied; this statement is not for agents"
#: Number of variables of a session; one may hold a megabyte, for which MySQL takes two.
MAX_VARIABLES = 100
TOO_MANY_VARIABLES = f"A session may use {MAX_VARIABLES} variables"
SERVER_ENDED = "the database server ended during an episode"
#: What an agent reads in place of this machine's name, of the server's directory and of a temporary file there.
HOST, DIRECTORY, TEMPORARY_FILE = "mysql", "/var/lib/coevolve", "file"
#: A statement without these words is not searched for the machine's name, which may be a value of the databases too.
_ASKS_FOR_HOST = re.compile("hostname|variables", re.IGNORECASE)
LIMIT_PASSED = "Out of resources; the server's limit of memory or of temporary files was passed"


@dataclass(frozen=True)
class QueryResult:
    """Result of a statement: its rows, or the server's error message; neither if it has no result set."""

    rows: list[tuple[Any, ...]] | None
    error: str = ""


class _SentStatements:
    """The variables that the statements of an episode name, and whether the server reads its default syntax."""

    def __init__(self) -> None:
        self.variables: set[str] = set()
        self.default_syntax = True

    def append(self, text: str) -> None:
        self.variables |= refusals.variables(text)
        self.default_syntax = self.default_syntax and not refusals.changes_syntax(text)


class SqlSession:
    """A session of one agent at a time on `server`, with a new connection for each episode.

    Episodes are isolated: variables, settings, prepared statements, locks and transactions end with their connection,
    and the account can only read. A statement ends within the server's time limit. If it raised that limit or is not
    covered by it, it is killed at most `GRACE_SECONDS` later, without a response or while it sends rows. A result is
    truncated at the configured number of rows and at `MAX_RESULT_LENGTH`. After a truncation, kill or interruption the
    session continues with a new connection to the episode's database. Clocks, connection ids, named locks and the
    process list belong to the server and are visible to all sessions.

    A server that passes a limit is ended and replaced. A session then repeats its statements on the next one. One whose
    statement was in progress repeats them on a server that serves nobody else. If that passes a limit too, the result
    is `LIMIT_PASSED`, the session continues with a new connection, and the episode's later statements are executed on
    such servers only.
    """

    def __init__(self, server: DatabaseServer) -> None:
        self._server = server
        self._limits = server.config
        self._connection: Connection | None = None
        self._database = ""
        self._socket = ""
        self._sent = _SentStatements()
        #: The statements that made the state of the connection.
        self._statements: list[str] = []
        self._greedy = False

    def use(self, database: str) -> None:
        """Open a new connection to `database`; raises `EnvError` without a server, `UserError` if it is unknown."""
        self._sent, self._greedy = _SentStatements(), False
        self._database = database
        self._begin()

    def execute(self, statement: str) -> QueryResult:
        """Result of `statement`; raises `EnvError` if the server has ended, after which `use` connects to the next."""
        text = statement.encode("utf-8", "replace").decode()
        if refusal := self._refusal(text):
            return QueryResult(None, refusal)
        self._sent.append(text)
        if self._greedy:
            return self._result_alone(text)
        try:
            if self._socket != self._server.socket:
                self._restore()
            return self._result(text)
        except EnvError:
            if not self._server.has_passed_limit(self._socket):
                raise
            return self._result_alone(text)

    def close(self) -> None:
        """End the connection; calling it again has no effect."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _refusal(self, text: str) -> str:
        """Why `text` is not sent, empty if it is."""
        if len(text) > MAX_STATEMENT_LENGTH:
            return TOO_LONG
        if refusals.is_refused(text, self._sent.default_syntax):
            return REFUSED
        return TOO_MANY_VARIABLES if len(self._sent.variables | refusals.variables(text)) > MAX_VARIABLES else ""

    def _result(self, text: str) -> QueryResult:
        # Another session may have interrupted the first attempt. A repetition is safe because nothing can be changed.
        return self._attempt(text) or self._attempt(text) or QueryResult(None, INTERRUPTED)

    def _result_alone(self, text: str) -> QueryResult:
        """Result of `text` after the connection's statements on a server that serves nobody else."""
        with self._server.private_copy() as server, contextlib.closing(SqlSession(server)) as session:
            session._database = self._database
            try:
                session._begin(self._statements)
                result = session._result(text)
            except EnvError:
                if not server.has_passed_limit(session._socket):
                    raise
                self._greedy, self._statements = True, []
                return QueryResult(None, LIMIT_PASSED)
            self._statements = session._statements
            return result

    def _restore(self) -> None:
        """Repeat the connection's statements on the server that replaced one that passed its limit."""
        if not self._server.has_passed_limit(self._socket):
            raise EnvError(SERVER_ENDED)
        statements = self._statements
        try:
            self._begin(statements)
        except EnvError:
            self._statements = statements
            raise

    def _begin(self, statements: Sequence[str] = ()) -> None:
        """Open another connection to the server that runs now, and execute `statements`."""
        self.close()
        self._connection = self._connect()
        self._socket = str(self._connection.unix_socket)
        self._statements = []
        for text in statements:
            self._result(text)

    def _connect(self) -> Connection:
        connection = self._server.connect(self._database)
        connection.decoders.update(DECODERS)
        return connection

    def _reconnect(self) -> Connection:
        """Another connection to the server process on which this episode began."""
        if self._server.socket != self._socket:
            raise EnvError(SERVER_ENDED)
        connection = self._connect()
        if connection.unix_socket != self._socket:
            connection.close()
            raise EnvError(SERVER_ENDED)
        return connection

    def _attempt(self, text: str) -> QueryResult | None:
        """Result of a statement, None if the connection was interrupted."""
        connection = self._connection = self._connection or self._reconnect()
        cursor = connection.cursor(SSCursor)
        try:
            cursor.execute(text)
            rows = self._fetch_rows(connection, cursor) if cursor.description else None
            result = QueryResult(rows and self._reproducible_rows(text, rows))
        except pymysql.MySQLError as error:
            if not connection.open or error.args[0] in INTERRUPTION_ERRORS:
                self._abandon(connection)
                return QueryResult(None, TIMED_OUT) if isinstance(error.__context__, TimeoutError) else None
            # After a change of the character set of results, a server's message is empty.
            result = QueryResult(None, self._reproducible(error.args[-1]) or NOT_UTF8)
        except TimeoutError:
            self._abandon(connection)
            return QueryResult(None, TIMED_OUT)
        except (ValueError, ArithmeticError):
            # The agent has changed the character set of results.
            self._abandon(connection)
            return QueryResult(None, NOT_UTF8)
        if self._connection is connection:
            self._statements.append(text)
        return result

    def _fetch_rows(self, connection: Connection, cursor: SSCursor) -> list[tuple[Any, ...]]:
        rows, length = list[tuple[Any, ...]](), 0
        deadline = time.monotonic() + self._limits.statement_seconds + GRACE_SECONDS
        for row in iter(cursor.fetchone, None):
            if time.monotonic() > deadline:
                raise TimeoutError
            if len(rows) == self._limits.rows or length > MAX_RESULT_LENGTH:
                self._abandon(connection)
                break
            rows.append(row)
            length += 8 * len(row) + sum(len(cell) for cell in row if isinstance(cell, str | bytes))
        return rows

    def _reproducible_rows(self, statement: str, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Rows in which the server's directory and this machine's name are constants."""
        host = gethostname() if _ASKS_FOR_HOST.search(statement) else None
        directory = self._directory

        def reproducible(cell: Any) -> Any:
            if not isinstance(cell, str):
                return cell
            return HOST if cell == host else self._reproducible(cell) if directory in cell else cell

        return [tuple(map(reproducible, row)) for row in rows]

    def _reproducible(self, text: str) -> str:
        """`text` with constants for the server's directory and for the names of temporary files in it."""
        text = re.sub(rf"({re.escape(self._directory)}/[^'\s]*te?mp/)[^'\s]+", rf"\g<1>{TEMPORARY_FILE}", text)
        return text.replace(self._directory, DIRECTORY)

    @property
    def _directory(self) -> str:
        """The server's directory."""
        return str(Path(self._socket).parent)

    def _abandon(self, connection: Connection) -> None:
        """Close `connection` without reading the remaining rows, and kill its statement on the server."""
        if connection._result is not None:  # type: ignore[attr-defined]
            # Otherwise PyMySQL reads the remaining rows and results before it closes.
            connection._result.unbuffered_active = False  # type: ignore[attr-defined]
            connection._result = None  # type: ignore[attr-defined]
        self.close()
        with contextlib.closing(self._reconnect()) as other, contextlib.suppress(pymysql.MySQLError):
            # Fails if the connection has ended already.
            other.query(f"KILL {connection.thread_id()}")  # type: ignore[no-untyped-call]
        self._statements = []


def _valid(convert: Callable[[str], object], kind: type) -> Callable[[str], Any]:
    """`convert`, with None for an invalid value such as month 0, as in mysql-connector."""

    def decode(text: str) -> Any:
        value = convert(text)
        return value if isinstance(value, kind) else None

    return decode


#: Decoders of column types that PyMySQL decodes otherwise than mysql-connector, whose rows upstream prints.
DECODERS: dict[int, Callable[[Any], Any]] = {
    FIELD_TYPE.BIT: int.from_bytes,
    FIELD_TYPE.DATE: _valid(converters.convert_date, date),
    FIELD_TYPE.DATETIME: _valid(converters.convert_datetime, datetime),
    FIELD_TYPE.TIMESTAMP: _valid(converters.convert_datetime, datetime),
}
