"""One agent's session on the server: every statement whatsoever ends as an answer."""

from __future__ import annotations

import contextlib
import re
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
from coevolve.envs.intercode_sql import mariadb
from coevolve.envs.intercode_sql.server import GRACE_SECONDS, Connection, Server

#: Longer statements are not sent: the server would end the connection over a megabyte.
STATEMENT_LENGTH = 250_000
#: A result is cut once it is so long, in characters of text and eight for every cell.
RESULT_LENGTH = 16_000_000
#: A statement that somebody else ended, as MySQL says it, and (the last one) MariaDB.
INTERRUPTIONS = (ER.QUERY_INTERRUPTED, ER.SERVER_SHUTDOWN, 1927)

TIMED_OUT = "Query execution was interrupted, maximum statement execution time exceeded"
INTERRUPTED = "Query execution was interrupted"
NOT_UTF8 = "The result cannot be read as UTF-8"
TOO_LONG = f"A statement may have {STATEMENT_LENGTH:,} characters"
REFUSED = "Access denied; this statement is not for agents"

#: KILL would reach sessions of the same account, and what XA prepares outlives its session.
_REFUSED = re.compile(r"(?:KILL|XA)\b", re.IGNORECASE)
#: Comments, and the openings of those that a server reads.
_SKIPPED = re.compile(r"\s|/\*M?!\d*|/\*.*?\*/|\*/|--\s[^\n]*|#[^\n]*", re.DOTALL)


@dataclass(frozen=True)
class Answer:
    """What a statement met: its rows, or the server's message; neither if the statement has no result set."""

    rows: list[tuple[Any, ...]] | None
    error: str = ""


class Session:
    """One agent at a time on `server`, through a connection that is new for each episode.

    Nothing of an episode is left in the next: variables, settings, prepared statements, locks and transactions end with
    their connection, and the account can only read. A statement ends within the server's time limit; one that lifted
    the limit, or that the limit does not cover, is killed at most `GRACE_SECONDS` (of silence, or of rows) later. A
    result is cut at the server's limit of rows, whatever the statement says, and at `RESULT_LENGTH`. Whoever is
    cut, killed or interrupted goes on with a new connection to the episode's database. Clocks, connection ids, named
    locks and the process list are the server's, and can be seen by all.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._limits = server.config
        self._connection: Connection | None = None
        self._database = ""
        self._pid: int | None = None

    def use(self, database: str) -> None:
        """Begin anew on `database`; `EnvError` if there is no server to be had, `UserError` for an unknown database."""
        self.close()
        self._database = database
        self._connection = self._connect()
        self._pid = self._server.pid

    def ask(self, statement: str) -> Answer:
        """What `statement` answers; `EnvError` if the server has ended, after which `use` begins on the next one."""
        text = statement.encode("utf-8", "replace").decode()
        if len(text) > STATEMENT_LENGTH:
            return Answer(None, TOO_LONG)
        if _is_refused(text):
            return Answer(None, REFUSED)
        # Another session may have interrupted the first attempt, which cannot have changed anything.
        answer = self._attempt(text) or self._attempt(text) or Answer(None, INTERRUPTED)
        return answer if self._server.comparable else _as_mysql(text, answer)

    def close(self) -> None:
        """End the connection; harmless when called twice."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _connect(self) -> Connection:
        connection = self._server.connect(self._database)
        connection.decoders.update(DECODERS)
        return connection

    def _reconnect(self) -> Connection:
        """Another connection to the server of this episode."""
        connection = self._connect()
        if self._server.pid != self._pid:
            connection.close()
            raise EnvError("the database server ended during an episode")
        return connection

    def _attempt(self, text: str) -> Answer | None:
        """The answer, None if the connection was interrupted."""
        connection = self._connection = self._connection or self._reconnect()
        cursor = connection.cursor(SSCursor)
        try:
            cursor.execute(text)
            return Answer(self._rows(connection, cursor) if cursor.description else None)
        except pymysql.MySQLError as error:
            if connection.open and error.args[0] not in INTERRUPTIONS:
                return Answer(None, error.args[-1])
            self._abandon(connection)
            return Answer(None, TIMED_OUT) if isinstance(error.__context__, TimeoutError) else None
        except TimeoutError:
            self._abandon(connection)
            return Answer(None, TIMED_OUT)
        except (ValueError, ArithmeticError):
            # The agent chose another character set for its results.
            self._abandon(connection)
            return Answer(None, NOT_UTF8)

    def _rows(self, connection: Connection, cursor: SSCursor) -> list[tuple[Any, ...]]:
        rows, length = list[tuple[Any, ...]](), 0
        deadline = time.monotonic() + self._limits.statement_seconds + GRACE_SECONDS
        for row in iter(cursor.fetchone, None):
            if time.monotonic() > deadline:
                raise TimeoutError
            if len(rows) == self._limits.rows or length > RESULT_LENGTH:
                self._abandon(connection)
                break
            rows.append(row)
            length += 8 * len(row) + sum(len(cell) for cell in row if isinstance(cell, str | bytes))
        return rows

    def _abandon(self, connection: Connection) -> None:
        """Give `connection` up without reading what is still to come, and stop what it does."""
        if connection._result is not None:  # type: ignore[attr-defined]
            # PyMySQL would read the rest before it lets go.
            connection._result.unbuffered_active = False  # type: ignore[attr-defined]
        self.close()
        with contextlib.closing(self._reconnect()) as other, contextlib.suppress(pymysql.MySQLError):
            # Fails where the connection has ended by itself.
            other.query(f"KILL {connection.thread_id()}")  # type: ignore[no-untyped-call]


def _as_mysql(statement: str, answer: Answer) -> Answer:
    """What MariaDB answered, in MySQL's words."""
    rows = None if answer.rows is None else mariadb.rows(statement, answer.rows)
    return Answer(rows, mariadb.error(answer.error))


def _valid(convert: Callable[[str], object], kind: type) -> Callable[[str], Any]:
    """`convert`, with None for what is no `kind`, such as the month 0: so mysql-connector reads it."""

    def decode(text: str) -> Any:
        value = convert(text)
        return value if isinstance(value, kind) else None

    return decode


#: Where PyMySQL reads a column's type otherwise than mysql-connector, whose rows upstream prints.
DECODERS: dict[int, Callable[[Any], Any]] = {
    FIELD_TYPE.BIT: int.from_bytes,
    FIELD_TYPE.DATE: _valid(converters.convert_date, date),
    FIELD_TYPE.DATETIME: _valid(converters.convert_datetime, datetime),
    FIELD_TYPE.TIMESTAMP: _valid(converters.convert_datetime, datetime),
}


def _is_refused(statement: str) -> bool:
    """Whether the first word of a statement is one that no agent may say."""
    start = 0
    while skipped := _SKIPPED.match(statement, start):
        start = skipped.end()
    return _REFUSED.match(statement, start) is not None
