"""One agent's session on the server, in which every statement, whatever it is, ends with a result."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
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
LIMIT_PASSED = "Out of resources; the server's limit of memory or of temporary files was passed"


@dataclass(frozen=True)
class QueryResult:
    """Result of a statement: its rows, or the server's error message; neither if it has no result set."""

    rows: list[tuple[Any, ...]] | None
    error: str = ""


class _SentStatements:
    """The statements of an episode, the variables that they name, and whether the server reads its default syntax."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.variables: set[str] = set()
        self.default_syntax = True

    def append(self, text: str) -> None:
        self.statements.append(text)
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

    If the server passes a limit and is ended during a statement, the episode's statements are repeated on a server of
    their own. If that passes a limit too, the result is `LIMIT_PASSED`; otherwise another session was the cause.
    """

    def __init__(self, server: DatabaseServer) -> None:
        self._server = server
        self._limits = server.config
        self._connection: Connection | None = None
        self._database = ""
        self._pid: int | None = None
        self._sent = _SentStatements()

    def use(self, database: str) -> None:
        """Open a new connection to `database`; raises `EnvError` without a server, `UserError` if it is unknown."""
        self.close()
        self._sent = _SentStatements()
        self._database = database
        self._connection = self._connect()
        self._pid = self._server.pid

    def execute(self, statement: str) -> QueryResult:
        """Result of `statement`; raises `EnvError` if the server has ended, after which `use` connects to the next."""
        text = statement.encode("utf-8", "replace").decode()
        if refusal := self._refusal(text):
            return QueryResult(None, refusal)
        if self._pid != self._server.pid:
            raise EnvError(SERVER_ENDED)
        self._sent.append(text)
        try:
            return self._result(text)
        except EnvError:
            if not (self._server.has_passed_limit(self._pid) and self._passes_limit_alone()):
                raise
            self.use(self._database)
            return QueryResult(None, LIMIT_PASSED)

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

    def _passes_limit_alone(self) -> bool:
        """Whether the episode's statements make a server that serves nobody else pass a limit."""
        with self._server.private_copy() as server, contextlib.closing(SqlSession(server)) as session:
            session.use(self._database)
            try:
                for text in self._sent.statements:
                    session._result(text)
            except EnvError:
                return server.has_passed_limit(session._pid)
        return False

    def _connect(self) -> Connection:
        connection = self._server.connect(self._database)
        connection.decoders.update(DECODERS)
        return connection

    def _reconnect(self) -> Connection:
        """Another connection to the server process on which this episode began."""
        connection = self._connect()
        if self._server.pid != self._pid:
            connection.close()
            raise EnvError(SERVER_ENDED)
        return connection

    def _attempt(self, text: str) -> QueryResult | None:
        """Result of a statement, None if the connection was interrupted."""
        connection = self._connection = self._connection or self._reconnect()
        cursor = connection.cursor(SSCursor)
        try:
            cursor.execute(text)
            return QueryResult(self._fetch_rows(connection, cursor) if cursor.description else None)
        except pymysql.MySQLError as error:
            if connection.open and error.args[0] not in INTERRUPTION_ERRORS:
                # After a change of the character set of results, a server's message is empty.
                return QueryResult(None, error.args[-1] or NOT_UTF8)
            self._abandon(connection)
            return QueryResult(None, TIMED_OUT) if isinstance(error.__context__, TimeoutError) else None
        except TimeoutError:
            self._abandon(connection)
            return QueryResult(None, TIMED_OUT)
        except (ValueError, ArithmeticError):
            # The agent has changed the character set of results.
            self._abandon(connection)
            return QueryResult(None, NOT_UTF8)

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
