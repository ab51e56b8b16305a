"""Replay of InterCode's recorded runs, statement by statement, with every difference classified.

A recorded run holds an agent's episodes on the development items in 2023: its actions, the results of MySQL 8.0.33
through mysql-connector, and rewards (written by `experiments/eval_n_turn.py` and `experiments/eval_react.py` of
princeton-nlp/intercode). The recorded episodes shared one writable connection, so that they saw each other's tables and
settings. Here every episode has its own read-only session.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coevolve.envs.intercode_sql.config import SqlServerConfig
from coevolve.envs.intercode_sql.difference_classes import (
    ERROR_PREFIX,
    SHARED_STATE,
    ResultPair,
    classify,
    without_bytes_prefix,
)
from coevolve.envs.intercode_sql.gold_queries import GoldQueries, SqlItem
from coevolve.envs.intercode_sql.reward import overlap, reward
from coevolve.envs.intercode_sql.server import DatabaseServer
from coevolve.envs.intercode_sql.session import QueryResult, SqlSession
from coevolve.envs.intercode_sql.tasks import InterCodeItem
from coevolve.errors import UserError
from coevolve.storage import jsonl

DEV_ITEMS = "ic_spider_dev.json"
#: Numbers of rows to which upstream's ReAct loop truncated results: the usual one first, then those of later reruns.
REACT_ROWS = (25, 10, 15, 30)
#: Number of characters to which it truncated errors.
REACT_CHARACTERS = 350
_EXECUTE = re.compile(r"execute\[(.*)\]", re.DOTALL)


@dataclass(frozen=True)
class RecordedTurn:
    """A turn that reached the server: statement (None: a submission), observation, and reward if one was computed."""

    number: int
    statement: str | None
    observation: str
    reward: float | None


@dataclass(frozen=True)
class RecordedEpisode:
    """An episode on development item `number`; `react`: upstream's ReAct loop recorded it, with truncated results."""

    number: int
    item: SqlItem
    turns: tuple[RecordedTurn, ...]
    react: bool


@dataclass(frozen=True)
class ResultDifference:
    """A result that differs from the record; `turn` counts from 0, `kind` is a name in `difference_classes.CLASSES`."""

    item: int
    turn: int
    kind: str
    pair: ResultPair


@dataclass(frozen=True)
class SqlReplayReport:
    """Agreement of the server called `identity` with a recorded run, with `b'...'` read as `'...'`.

    `statements` counts the statements sent by upstream (a submission repeats the last text and is not counted again),
    `rewards` the recorded rewards. Upstream computed these without the factor for order, which was added later, so they
    are to be compared with `equal_overlaps`.
    """

    identity: str
    episodes: int
    statements: int
    rewards: int
    equal_rewards: int
    equal_overlaps: int
    differences: tuple[ResultDifference, ...]

    @property
    def identical_share(self) -> float:
        """Share of identical observations, 0 to 1."""
        return _ratio(self.statements - len(self.differences), self.statements)

    @property
    def stateless_share(self) -> float:
        """The same without the statements whose recorded result depended on changes by earlier episodes."""
        state = sum(self.by_class[kind] for kind in SHARED_STATE)
        return _ratio(self.statements - len(self.differences), self.statements - state)

    @property
    def by_class(self) -> Counter[str]:
        """Number of differences of each class."""
        return Counter(difference.kind for difference in self.differences)

    def examples(self, kind: str, n: int) -> list[ResultDifference]:
        """The first `n` differences of a class."""
        return [difference for difference in self.differences if difference.kind == kind][:n]

    def summary_line(self) -> str:
        """Shares and counts in one line."""
        classes = ", ".join(f"{count} {kind}" for kind, count in self.by_class.most_common()) or "none"
        return (
            f"{self.identity}: observations {self.identical_share:.2%} identical "
            f"({self.statements - len(self.differences)} of {self.statements}), {self.stateless_share:.2%} without "
            f"upstream's shared state; rewards {_ratio(self.equal_rewards, self.rewards):.2%} "
            f"({self.equal_rewards} of {self.rewards}), {_ratio(self.equal_overlaps, self.rewards):.2%} in any order "
            f"({self.equal_overlaps}); differences: {classes}"
        )


def replay(
    path: Path, config: SqlServerConfig, dump: Path, dev: Path | None = None, limit: int | None = None
) -> SqlReplayReport:
    """Replay the recorded run in `path`, or its first `limit` episodes, on a new server.

    `dev` is the file of the development items; by default it is searched in the folder of `path` and in its parent.
    Raises `UserError` for files in another format.
    """
    episodes = read(path, dev)[:limit]
    with DatabaseServer(config, dump) as server:
        return compare(server, episodes)


def compare(server: DatabaseServer, episodes: Sequence[RecordedEpisode]) -> SqlReplayReport:
    """Execute all statements of `episodes` on `server`, each episode in a new session."""
    tally: Counter[str] = Counter()
    differences: list[ResultDifference] = []
    with closing(GoldQueries(server)) as gold_queries:
        for episode in episodes:
            with closing(SqlSession(server)) as session:
                session.use(episode.item.database)
                differences += _compare_episode(session, gold_queries, episode, tally)
    return SqlReplayReport(
        identity=server.identity,
        episodes=len(episodes),
        statements=tally["statements"],
        rewards=tally["rewards"],
        equal_rewards=tally["equal rewards"],
        equal_overlaps=tally["equal overlaps"],
        differences=tuple(differences),
    )


def read(path: Path, dev: Path | None = None) -> list[RecordedEpisode]:
    """The episodes of a recorded run in the file's order, each with its item from `dev`.

    Raises `UserError` for files in another format, or if `dev` holds other items.
    """
    records, items = _records(path), read_items(dev or _find_items(path))
    try:
        return [_episode(record, items) for record in records.values()]
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{path}: not a run that InterCode recorded on these items ({reason}).") from None


def read_items(dev: Path) -> list[SqlItem]:
    """The development items of a file in InterCode's format; raises `UserError` for another format."""
    return [SqlItem(item.db, item.gold, item.query) for item in jsonl.read_items(dev, InterCodeItem)]


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _compare_episode(
    session: SqlSession, gold_queries: GoldQueries, episode: RecordedEpisode, tally: Counter[str]
) -> Iterator[ResultDifference]:
    """Replay an episode: yields its differences and adds its counts to `tally`."""
    result = QueryResult(None)
    for turn in episode.turns:
        if turn.statement is not None:
            result = session.execute(turn.statement)
            pair = _pair(turn.statement, turn.observation, result, episode.react)
            tally["statements"] += 1
            if without_bytes_prefix(pair.current) != without_bytes_prefix(pair.recorded):
                yield ResultDifference(episode.number, turn.number, classify(pair), pair)
        if turn.reward is not None:
            tally["rewards"] += 1
            gold = gold_queries.rows(episode.item)
            tally["equal rewards"] += math.isclose(reward(result.rows, gold), turn.reward)
            tally["equal overlaps"] += math.isclose(overlap(result.rows, gold), turn.reward)


def _pair(statement: str, recorded: str, result: QueryResult, react: bool) -> ResultPair:
    """The recorded text with the text that upstream's loop would print for `result`."""
    texts = _printed(result, react)
    current = next((text for text in texts if without_bytes_prefix(text) == without_bytes_prefix(recorded)), texts[0])
    return ResultPair(statement, recorded, current, tuple(map(str, result.rows or ())))


def _printed(result: QueryResult, react: bool) -> list[str]:
    """All texts that upstream's loop may have printed for `result`, the most likely first."""
    if result.error:
        return [f"{ERROR_PREFIX}{result.error}"[: REACT_CHARACTERS if react else None]]
    if result.rows is None or not react:
        return [str(result.rows)]
    return [str(result.rows[:rows]) for rows in REACT_ROWS]


def _episode(record: dict[str, Any], items: Sequence[SqlItem]) -> RecordedEpisode:
    number = record["task_id"]
    if record["query"] != items[number].question:
        raise ValueError(f"item {number} has another question")
    history = record["turn_history"]
    react = "thoughts" in history
    # A request that the model's provider refused leaves a last action without an observation.
    turns = zip(history["actions"], history["observations"], history["rewards"], strict=False)
    parse = _react_turn if react else _plain_turn
    parsed = (parse(number, *turn) for number, turn in enumerate(turns))
    return RecordedEpisode(number, items[number], tuple(turn for turn in parsed if turn), react)


def _plain_turn(number: int, action: str, observation: str, earned: float) -> RecordedTurn | None:
    """A statement, submitted immediately; None for a text without a statement, which upstream did not execute."""
    executed = observation == "None" or observation.startswith(("[", ERROR_PREFIX))
    return RecordedTurn(number, action, observation, earned) if executed else None


def _react_turn(number: int, action: str, observation: str, earned: float) -> RecordedTurn | None:
    """A submission, or the statement in `execute[...]` up to a semicolon; None for another action."""
    if action == "submit":
        return RecordedTurn(number, None, observation, earned)
    match = _EXECUTE.search(action)
    return RecordedTurn(number, match[1].partition(";")[0], observation, None) if match else None


def _find_items(path: Path) -> Path:
    """The file of the development items in the folder of `path` or in its parent."""
    for folder in (path.parent, path.parent.parent):
        if (folder / DEV_ITEMS).is_file():
            return folder / DEV_ITEMS
    raise UserError(f"{path}: a recorded run does not name the databases; give InterCode's {DEV_ITEMS} as well.")


def _records(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not readable as JSON ({error}).") from None
    if not isinstance(content, dict) or not content:
        raise UserError(f"{path}: does not hold a dict of items; give a file in InterCode's format.")
    return content
