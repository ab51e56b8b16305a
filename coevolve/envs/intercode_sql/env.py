"""The InterCodeSQL environment: a question, SQL statements on a real server, and submission of the last result."""

import dataclasses
import hashlib
import re
import threading
from collections.abc import Iterable
from typing import Any

from coevolve.chat.prompts import stated
from coevolve.envs.base import OVER, EnvError, StepResult, truncate
from coevolve.envs.intercode_sql.config import InterCodeSqlConfig
from coevolve.envs.intercode_sql.reward import is_exact, reward
from coevolve.envs.intercode_sql.server import DatabaseServer
from coevolve.envs.intercode_sql.session import (
    INTERRUPTED,
    LIMIT_PASSED,
    MAX_STATEMENT_LENGTH,
    TIMED_OUT,
    QueryResult,
    SqlSession,
)
from coevolve.envs.intercode_sql.tasks import SqlItem, item_of
from coevolve.records.episodes import Task
from coevolve.settings.protocol import Quirks

NOT_UNDERSTOOD = (
    "I found nothing to do in that. Write `Action:` and then either one SQL statement that gives rows, fenced as "
    "```sql ... ```, or `submit` to hand in the last result."
)
NO_ROWS = "Done. This statement gives no rows."
#: The largest reward that upstream's two digits leave below 1.
NEARLY_EXACT = 0.99
_ACTION = re.compile(r"Action:\s?(.*)", re.DOTALL)
_SQL = re.compile(r"```sql(.*?)```", re.DOTALL)
_SUBMIT = re.compile(r"submit\.?", re.IGNORECASE)


class GoldQueries:
    """Rows of the questions' gold queries, each executed once, in a session that no episode uses; thread-safe."""

    def __init__(self, server: DatabaseServer) -> None:
        self._session = SqlSession(server)
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, str], list[tuple[Any, ...]]] = {}

    def rows(self, item: SqlItem) -> list[tuple[Any, ...]]:
        """Rows of the gold query of `item`; like upstream's, a query that fails has none.

        Raises `EnvError` if the query was interrupted, timed out or passed a limit, as on an overloaded machine.
        """
        key = (item.database, item.gold)
        with self._lock:
            if key not in self._rows:
                self._session.use(item.database)
                result = self._session.execute(item.gold)
                if result.error in (INTERRUPTED, TIMED_OUT, LIMIT_PASSED):
                    raise EnvError(f"the gold query `{item.gold}` was cut short: {result.error}")
                self._rows[key] = result.rows or []
            return self._rows[key]

    def close(self) -> None:
        """End the session; calling it again has no effect."""
        self._session.close()


class InterCodeSql:
    """One environment with its own session on `server`. Implements `coevolve.envs.base.Env`.

    `start` returns the question alone, like IPR's environment. The reward is 0 until the last result is submitted.
    With `sql_wrapper` "lenient", `submit` anywhere in an action submits, only the first line of the SQL is executed,
    and a statement without a result set is answered by `NOT_UNDERSTOOD` (quirk 9). With "exact", the
    whole action must be `submit`, all lines are executed, and such a statement is answered by `NO_ROWS`.
    """

    #: A statement, which has its own limit, and the text around it.
    action_limit = 2 * MAX_STATEMENT_LENGTH

    def __init__(
        self,
        server: DatabaseServer,
        gold_queries: GoldQueries,
        config: InterCodeSqlConfig,
        quirks: Quirks,
        identity: str,
    ) -> None:
        self._gold_queries = gold_queries
        self._config = config
        self._lenient = quirks.sql_wrapper == "lenient"
        self._action_label = quirks.action_label
        self._clipped = quirks.sql_reward == "clipped"
        self.identity = identity
        self._session = SqlSession(server)
        self._item: SqlItem | None = None
        self._result = QueryResult(None)
        self._last = StepResult(observation=OVER, reward=0.0, score=0.0, done=True)

    def parse(self, text: str) -> str | None:
        """The text after `Action:` and at most one white-space character, None without that label."""
        match = _ACTION.search(stated(text, self._action_label))
        return match[1] if match else None

    def start(self, task: Task) -> str:
        """Open a session on the task's database; returns the question. Raises `UserError` for an unsuitable task."""
        item = item_of(task)
        self._session.use(item.database)
        self._item, self._result = item, QueryResult(None)
        self._last = StepResult(observation=item.question, reward=0.0, score=0.0, done=False)
        return item.question

    def step(self, action: str | None) -> StepResult:
        """Execute the statement in `action`, or submit the last result; answers `NOT_UNDERSTOOD` to anything else."""
        if self._item is None or self._last.done:
            self._last = dataclasses.replace(self._last, observation=OVER, done=True)
        elif self._is_submission(action or ""):
            self._last = self._submit(self._item)
        else:
            observation = self._execute(self._statement(action or ""))
            self._last = dataclasses.replace(self._last, observation=observation)
        return self._last

    def step_limit(self, task: Task) -> int:
        """The configured limit, the same for all tasks."""
        return self._config.step_limit

    def close(self) -> None:
        """End the session; the server stays open."""
        self._session.close()

    def _is_submission(self, action: str) -> bool:
        return "submit" in action if self._lenient else _SUBMIT.fullmatch(action.strip()) is not None

    def _statement(self, action: str) -> str:
        """The SQL to execute, empty without a SQL block."""
        block = _SQL.search(action)
        statement = block[1].strip() if block else ""
        return statement.split("\n", 1)[0] if self._lenient else statement

    def _execute(self, statement: str) -> str:
        """The observation after `statement`."""
        if not statement:
            return NOT_UNDERSTOOD
        self._result = self._session.execute(statement)
        if self._result.rows is None and not self._result.error:
            return NOT_UNDERSTOOD if self._lenient else NO_ROWS
        text = _result_text(self._result)
        return self._cut(f"{text}\n" if self._result.error and "Unknown" not in text else text)

    def _submit(self, item: SqlItem) -> StepResult:
        text, rows, gold = _result_text(self._result), self._result.rows, self._gold_queries.rows(item)
        observation, score = text if self._lenient else self._cut(text), reward(rows, gold)
        earned = self._protocol_reward(score, is_exact(rows, gold))
        return StepResult(observation=observation, reward=earned, score=score, done=True)

    def _protocol_reward(self, score: float, exact: bool) -> float:
        """The reward for upstream's raw `score`, in [-1, 1]: 1 for an `exact` answer alone, unless the score itself."""
        if self._config.reward == "binary":
            return float(exact)
        if not self._clipped:
            return score
        return 1.0 if exact else min(max(0.0, score), NEARLY_EXACT)

    def _cut(self, text: str) -> str:
        return truncate(text, self._config.observation_length)


def _result_text(result: QueryResult) -> str:
    """The text that upstream prints for a result: the list of rows, the error, or `None`."""
    return f"Error executing query: {result.error}" if result.error else str(result.rows)


def fingerprint(gold_queries: GoldQueries, tasks: Iterable[Task]) -> str:
    """First 16 hex digits of the sha256 over database, gold query and gold rows of `tasks`, in their order."""
    digest = hashlib.sha256()
    for item in map(item_of, tasks):
        digest.update(repr((item.database, item.gold, gold_queries.rows(item))).encode())
    return digest.hexdigest()[:16]
