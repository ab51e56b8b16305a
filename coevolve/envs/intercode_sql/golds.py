"""What each question's gold statement answers, asked once, apart from all episodes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from coevolve.envs.base import EnvError
from coevolve.envs.intercode_sql.server import Server
from coevolve.envs.intercode_sql.session import INTERRUPTED, TIMED_OUT, Session
from coevolve.errors import UserError
from coevolve.types import Task


@dataclass(frozen=True)
class Item:
    """A question over a database, and the statement that answers it."""

    database: str
    gold: str
    question: str


class Golds:
    """Rows of gold statements, from a session of their own; any thread may ask."""

    def __init__(self, server: Server) -> None:
        self._session = Session(server)
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, str], list[tuple[Any, ...]]] = {}

    def rows(self, item: Item) -> list[tuple[Any, ...]]:
        """What the gold statement of `item` answers; no rows if it fails, as upstream has it.

        Raises `EnvError` if it was cut short, as a server without a core to run on may do.
        """
        key = (item.database, item.gold)
        with self._lock:
            if key not in self._rows:
                self._session.use(item.database)
                answer = self._session.ask(item.gold)
                if answer.error in (INTERRUPTED, TIMED_OUT):
                    raise EnvError(f"the gold statement `{item.gold}` was cut short: {answer.error}")
                self._rows[key] = answer.rows or []
            return self._rows[key]

    def close(self) -> None:
        """End the session; harmless when called twice."""
        self._session.close()


def fingerprint(golds: Golds, tasks: Iterable[Task]) -> str:
    """First 16 hex digits of the sha256 over database, gold statement and gold rows of `tasks`, in their order."""
    digest = hashlib.sha256()
    for item in map(item_of, tasks):
        digest.update(repr((item.database, item.gold, golds.rows(item))).encode())
    return digest.hexdigest()[:16]


def item_of(task: Task) -> Item:
    """The item in `task.data`; raises `UserError` if a part of it is missing."""
    parts = [task.data.get(key) for key in ("database", "gold", "question")]
    if not all(isinstance(part, str) for part in parts):
        raise UserError(f"task `{task.task_id}`: `data` must hold `database`, `gold` and `question`, all text.")
    return Item(*map(str, parts))
