"""Results of the questions' gold queries, each executed once and in a session that no episode uses."""

import hashlib
import threading
from collections.abc import Iterable
from typing import Any

from coevolve.envs.base import EnvError
from coevolve.envs.intercode_sql.server import DatabaseServer
from coevolve.envs.intercode_sql.session import INTERRUPTED, LIMIT_PASSED, TIMED_OUT, SqlSession
from coevolve.envs.intercode_sql.tasks import SqlItem, item_of
from coevolve.records.episodes import Task


class GoldQueries:
    """Cached rows of gold queries; thread-safe."""

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


def fingerprint(gold_queries: GoldQueries, tasks: Iterable[Task]) -> str:
    """First 16 hex digits of the sha256 over database, gold query and gold rows of `tasks`, in their order."""
    digest = hashlib.sha256()
    for item in map(item_of, tasks):
        digest.update(repr((item.database, item.gold, gold_queries.rows(item))).encode())
    return digest.hexdigest()[:16]
