"""InterCodeSQL with 1, 8 and 64 sessions at once, beside the pattern upstream uses: same server, same episodes.

Upstream's pattern: one connection through mysql-connector, shared by all episodes, which therefore play one after
another; the gold statement asked again at every submission; the database container restarted between phases. Its
connection may write, which a benchmark of reading cannot show; its restart is stood for by stopping the private server
and starting it again. Episodes are the scripted expert's: two looks at tables, the statement, `submit`.

Needs mysql-connector-python (`pip install mysql-connector-python`), which nothing else here does.

    python benchmarks/sql.py --episodes 800
"""

from __future__ import annotations

import argparse
import queue
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tabulate import tabulate

try:
    import mysql.connector
except ModuleNotFoundError:
    raise SystemExit("sql.py needs mysql-connector-python: run `pip install mysql-connector-python`.") from None

from coevolve.config.loading import load_suite
from coevolve.config.suite import quirks
from coevolve.envs.intercode_sql import tasks
from coevolve.envs.intercode_sql.config import InterCodeSqlConfig
from coevolve.envs.intercode_sql.env import GoldQueries, InterCodeSql
from coevolve.envs.intercode_sql.question_templates import expert_turns
from coevolve.envs.intercode_sql.reward import reward
from coevolve.envs.intercode_sql.server import DatabaseServer
from coevolve.records.episodes import Task
from coevolve.settings.protocol import Quirks

ROOT = Path(__file__).parents[1]
SESSIONS = (1, 8, 64)
HEADERS = ["pattern", "sessions", "episodes", "reset ms", "step ms", "step ms 99 %", "episodes/s", "ratio"]


class Player(Protocol):
    """What plays an episode."""

    def start(self, task: Task) -> str:
        """The question."""
        ...

    def step(self, action: str) -> object:
        """What the action met."""
        ...


class Shared:
    """Upstream's pattern, on `connection`."""

    def __init__(self, connection: Any) -> None:
        self._cursor = connection.cursor(buffered=True)
        self._gold = ""
        self._rows: list[tuple[Any, ...]] | None = None

    def start(self, task: Task) -> str:
        """Go to the task's database."""
        item = tasks.item_of(task)
        self._gold = item.gold
        self._cursor.execute(f"use {item.database}")
        return item.question

    def step(self, action: str) -> object:
        """Run the statement, or reward the last result."""
        statement = re.search("```sql(.*?)```", action, re.DOTALL)
        if statement is None:
            return reward(self._rows, self._ask(self._gold))
        self._rows = self._ask(statement[1].strip())
        return str(self._rows)

    def _ask(self, statement: str) -> list[tuple[Any, ...]]:
        self._cursor.execute(statement)
        rows: list[tuple[Any, ...]] = self._cursor.fetchall()
        return rows


@dataclass
class Times:
    """Seconds of each reset and step, and of all together."""

    resets: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    total: float = 0.0

    def row(self, pattern: str, sessions: int, slowest: float) -> list[object]:
        """A line of the table; the ratio is that of episodes per second to those of `slowest` seconds."""
        high = statistics.quantiles(self.steps, n=100)[-1]
        latencies = [
            1000 * seconds for seconds in (statistics.median(self.resets), statistics.median(self.steps), high)
        ]
        episodes = len(self.resets)
        return [pattern, sessions, episodes, *latencies, episodes / self.total, slowest / self.total]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=800)
    parser.add_argument(
        "--suite", default=ROOT / "configs/suites/smoke.yaml", help="a name or a path (default: %(default)s)"
    )
    options = parser.parse_args()
    suite = load_suite(options.suite)
    settings = suite.envs["intercode_sql"]
    assert isinstance(settings, InterCodeSqlConfig)
    asked, _ = tasks.questions(settings)
    played = [asked[number % len(asked)] for number in range(options.episodes)]
    with DatabaseServer(settings.server, Path(settings.dump.path)) as server:
        rows = measure(server, settings, quirks(suite), played)
        print(f"{server.identity}\n{tabulate(rows, headers=HEADERS, floatfmt='.2f')}")
        print(f"upstream's restart between phases: {restart(server):.2f} s; sessions need none")


def measure(
    server: DatabaseServer, settings: InterCodeSqlConfig, quirks: Quirks, played: Sequence[Task]
) -> list[list[object]]:
    """The table: upstream's pattern, then the kit's with ever more sessions."""
    with upstream(server) as player:
        slow = play([player], played)
    rows = [slow.row("upstream", 1, slow.total)]
    with closing(GoldQueries(server)) as golds:
        for sessions in SESSIONS:
            envs = [InterCodeSql(server, golds, settings, quirks, server.identity) for _ in range(sessions)]
            rows.append(play(envs, played).row("coevolve", sessions, slow.total))
            for env in envs:
                env.close()
    return rows


@contextmanager
def upstream(server: DatabaseServer) -> Iterator[Shared]:
    """Upstream's pattern on the socket and account of `server`."""
    with server.connect() as ours:
        place = {"unix_socket": ours.unix_socket, "user": ours.user.decode()}
        with closing(mysql.connector.connect(**place)) as connection:
            yield Shared(connection)


def play(players: Sequence[Player], played: Sequence[Task]) -> Times:
    """Times of all episodes, each player in a thread of its own; one episode each goes before, to warm up."""
    times = Times()
    for player in players:
        episode(player, played[0], Times())
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in played:
        waiting.put(task)
    began = time.perf_counter()
    with ThreadPoolExecutor(len(players)) as threads:
        list(threads.map(lambda player: episodes(player, waiting, times), players))
    times.total = time.perf_counter() - began
    return times


def episodes(player: Player, waiting: queue.SimpleQueue[Task], times: Times) -> None:
    while True:
        try:
            task = waiting.get_nowait()
        except queue.Empty:
            return
        episode(player, task, times)


def episode(player: Player, task: Task, times: Times) -> None:
    times.resets.append(seconds(lambda: player.start(task)))
    for text in expert_turns(task):
        action = text.partition("Action:")[2].strip()
        times.steps.append(seconds(lambda action=action: player.step(action)))


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def restart(server: DatabaseServer) -> float:
    """Seconds to stop the server and start it again."""
    began = time.perf_counter()
    server.close()
    server.connect().close()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
