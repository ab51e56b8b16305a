"""InterCodeSQL as an environment: a question, statements against a real server, and the last result handed in."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from coevolve.config.sections import Quirks
from coevolve.envs.base import OVER, StepResult, cut
from coevolve.envs.intercode_sql import tasks
from coevolve.envs.intercode_sql.config import InterCodeSqlConfig
from coevolve.envs.intercode_sql.golds import Golds, Item, fingerprint, item_of
from coevolve.envs.intercode_sql.reward import reward
from coevolve.envs.intercode_sql.server import Server
from coevolve.envs.intercode_sql.session import Answer, Session
from coevolve.storage import files
from coevolve.types import Task

NOT_UNDERSTOOD = (
    "I found nothing to do in that. Write `Action:` and then either one SQL statement that gives rows, fenced as "
    "```sql ... ```, or `submit` to hand in the last result."
)
NO_ROWS = "Done. This statement gives no rows."
_ACTION = re.compile(r"Action:\s?(.*)", re.DOTALL)
_SQL = re.compile(r"```sql(.*?)```", re.DOTALL)
_SUBMIT = re.compile(r"submit\.?", re.IGNORECASE)


class InterCodeSql:
    """One environment: a session of its own on `server`. Implements `coevolve.envs.base.Env`.

    `start` answers with the question alone, as IPR does. The reward is 0 until the last result is submitted. Under
    `sql_wrapper` "lenient", `submit` anywhere in an action submits, only the first line of the SQL runs, and a
    statement without a result set is not understood (SPEC section 4, no. 9); "exact" reads it as a person would.
    """

    def __init__(self, server: Server, golds: Golds, config: InterCodeSqlConfig, quirks: Quirks, identity: str) -> None:
        self._golds = golds
        self._config = config
        self._lenient = quirks.sql_wrapper == "lenient"
        self._clipped = quirks.sql_reward == "clipped"
        self._identity = identity
        self._session = Session(server)
        self._item: Item | None = None
        self._answer = Answer(None)
        self._last = StepResult(observation=OVER, reward=0.0, score=0.0, done=True)

    @property
    def identity(self) -> str:
        """The server with its version, and a fingerprint of all gold rows."""
        return self._identity

    def parse(self, text: str) -> str | None:
        """Everything after the first `Action:` and at most one white-space character, None if there is none."""
        found = _ACTION.search(text)
        return found[1] if found else None

    def start(self, task: Task) -> str:
        """A new session on the task's database; raises `UserError` for a task that is none of this environment's."""
        item = item_of(task)
        self._session.use(item.database)
        self._item, self._answer = item, Answer(None)
        self._last = StepResult(observation=item.question, reward=0.0, score=0.0, done=False)
        return item.question

    def step(self, action: str | None) -> StepResult:
        """Run the statement in `action`, or hand in the last result; None and anything else are not understood."""
        if self._item is None or self._last.done:
            self._last = self._said(OVER, done=True)
        elif self._submits(action or ""):
            self._last = self._submit(self._item)
        else:
            self._last = self._said(self._ask(self._statement(action or "")))
        return self._last

    def step_limit(self, task: Task) -> int:
        """The configured limit, the same for all tasks."""
        return self._config.step_limit

    def close(self) -> None:
        """End the session; the server is closed by whoever made it."""
        self._session.close()

    def _submits(self, action: str) -> bool:
        return "submit" in action if self._lenient else _SUBMIT.fullmatch(action.strip()) is not None

    def _statement(self, action: str) -> str:
        """The SQL to run, empty if there is none."""
        block = _SQL.search(action)
        statement = block[1].strip() if block else ""
        return statement.split("\n", 1)[0] if self._lenient else statement

    def _ask(self, statement: str) -> str:
        if not statement:
            return NOT_UNDERSTOOD
        self._answer = self._session.ask(statement)
        if self._answer.rows is None and not self._answer.error:
            return NOT_UNDERSTOOD if self._lenient else NO_ROWS
        text = _in_words(self._answer)
        return self._cut(f"{text}\n" if self._answer.error and "Unknown" not in text else text)

    def _submit(self, item: Item) -> StepResult:
        text, score = _in_words(self._answer), reward(self._answer.rows, self._golds.rows(item))
        return StepResult(
            observation=text if self._lenient else self._cut(text), reward=self._paid(score), score=score, done=True
        )

    def _paid(self, score: float) -> float:
        if self._config.reward == "binary":
            return 1.0 if score == 1.0 else 0.0
        return max(0.0, score) if self._clipped else score

    def _cut(self, text: str) -> str:
        return cut(text, self._config.observation_length)

    def _said(self, text: str, done: bool = False) -> StepResult:
        return StepResult(observation=text, reward=self._last.reward, score=self._last.score, done=done)


@contextlib.contextmanager
def pool(config: InterCodeSqlConfig, quirks: Quirks, n: int) -> Iterator[list[InterCodeSql]]:
    """`n` environments on one server, to be used from up to `n` threads; the server ends with the block.

    All golds of the suite's items are computed first: the fingerprint over their rows is part of the identity.
    """
    dump = files.verified(Path(config.dump.path), config.dump.sha256, "dump")
    with Server(config.server, dump) as server, contextlib.ExitStack() as stack:
        golds = stack.enter_context(contextlib.closing(Golds(server)))
        identity = f"{server.identity} (rows {fingerprint(golds, tasks.items(config))})"
        envs = [InterCodeSql(server, golds, config, quirks, identity) for _ in range(n)]
        for env in envs:
            stack.callback(env.close)
        yield envs


def _in_words(answer: Answer) -> str:
    """What upstream prints of a result: the list of rows, the error, or `None`."""
    return f"Error executing query: {answer.error}" if answer.error else str(answer.rows)
