"""Recorded runs of InterCode asked again, statement by statement, and every difference counted in a class.

A recorded run holds what an agent did on the development items in 2023: its actions, what MySQL 8.0.33 answered
through mysql-connector, and rewards (`experiments/eval_n_turn.py` and `experiments/eval_react.py` of
princeton-nlp/intercode wrote them). Its episodes shared one writable connection and saw each other's tables and
settings; here every episode has a session of its own, which writes nothing.
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
from coevolve.envs.intercode_sql.differences import ERROR, SHARED_STATE, Pair, classify, normal
from coevolve.envs.intercode_sql.golds import Golds, Item
from coevolve.envs.intercode_sql.reward import overlap, reward
from coevolve.envs.intercode_sql.server import Server
from coevolve.envs.intercode_sql.session import Answer, Session
from coevolve.errors import UserError

DEV_ITEMS = "ic_spider_dev.json"
#: Rows that upstream's ReAct loop showed of a result, the usual number first; items asked again later got the others.
REACT_ROWS = (25, 10, 15, 30)
#: Characters it showed of an error.
REACT_CHARACTERS = 350
_EXECUTE = re.compile(r"execute\[(.*)\]", re.DOTALL)


@dataclass(frozen=True)
class Turn:
    """A turn that reached the server: statement (None: a submission), observation, and reward if one was computed."""

    number: int
    statement: str | None
    observation: str
    reward: float | None


@dataclass(frozen=True)
class Episode:
    """What an agent did on development item `number`; `react`: upstream's ReAct loop recorded it, and cut results."""

    number: int
    item: Item
    turns: tuple[Turn, ...]
    react: bool


@dataclass(frozen=True)
class Difference:
    """Where the server's answer left the record; `turn` counts from 0, `kind` is one of `differences.CLASSES`."""

    item: int
    turn: int
    kind: str
    pair: Pair


@dataclass(frozen=True)
class Report:
    """How often the server called `identity` said what was recorded, `b'...'` read as `'...'`.

    `statements` counts those that upstream sent (a submission repeats the last text and is not counted again),
    `rewards` the rewards that it computed: without the factor for order, which came later, so that `equal_overlaps` is
    the fair figure. What a server that is not `comparable` says tells nothing about MySQL.
    """

    identity: str
    comparable: bool
    episodes: int
    statements: int
    rewards: int
    equal_rewards: int
    equal_overlaps: int
    differences: tuple[Difference, ...]

    @property
    def share(self) -> float:
        """Share of identical observations, 0 to 1."""
        return _share(self.statements - len(self.differences), self.statements)

    @property
    def stateless_share(self) -> float:
        """The same over the statements whose recorded answer did not depend on what earlier episodes had changed."""
        state = sum(self.by_class[kind] for kind in SHARED_STATE)
        return _share(self.statements - len(self.differences), self.statements - state)

    @property
    def by_class(self) -> Counter[str]:
        """Number of differences of each class."""
        return Counter(difference.kind for difference in self.differences)

    def first(self, kind: str, n: int) -> list[Difference]:
        """The first `n` differences of a class."""
        return [difference for difference in self.differences if difference.kind == kind][:n]

    def last_line(self) -> str:
        """Shares and counts."""
        classes = ", ".join(f"{count} {kind}" for kind, count in self.by_class.most_common()) or "none"
        return (
            f"{self.identity}: observations {self.share:.2%} identical "
            f"({self.statements - len(self.differences)} of {self.statements}), {self.stateless_share:.2%} without "
            f"upstream's shared state; rewards {_share(self.equal_rewards, self.rewards):.2%} "
            f"({self.equal_rewards} of {self.rewards}), {_share(self.equal_overlaps, self.rewards):.2%} in any order "
            f"({self.equal_overlaps}); differences: {classes}"
        )


@dataclass(frozen=True)
class GoldCheck:
    """Which gold statements of the development items earn 1.0 against themselves: all but `failing`, by number."""

    identity: str
    comparable: bool
    items: int
    failing: tuple[int, ...]

    def last_line(self) -> str:
        """Counts."""
        return f"{self.identity}: {self.items - len(self.failing)} of {self.items} golds earn 1.0 against themselves"


def replay(
    path: Path, config: SqlServerConfig, dump: Path, dev: Path | None = None, limit: int | None = None
) -> Report:
    """Ask a server of its own the recorded run in `path`, or the first `limit` episodes of it.

    `dev` holds the development items; by default it is looked for beside the record and one folder up. Raises
    `UserError` for files that hold something else.
    """
    episodes = read(path, dev)[:limit]
    with Server(config, dump) as server:
        return compare(server, episodes)


def compare(server: Server, episodes: Sequence[Episode]) -> Report:
    """Ask `server` all statements of `episodes`, each episode in a new session."""
    tally: Counter[str] = Counter()
    differences: list[Difference] = []
    with closing(Golds(server)) as golds:
        for episode in episodes:
            with closing(Session(server)) as session:
                session.use(episode.item.database)
                differences += _compare_episode(session, golds, episode, tally)
    return Report(
        identity=server.identity,
        comparable=server.comparable,
        episodes=len(episodes),
        statements=tally["statements"],
        rewards=tally["rewards"],
        equal_rewards=tally["equal rewards"],
        equal_overlaps=tally["equal overlaps"],
        differences=tuple(differences),
    )


def check_golds(server: Server, dev: Path) -> GoldCheck:
    """Ask each gold statement of the file `dev` twice, as an agent and as the gold."""
    items = read_items(dev)
    with closing(Golds(server)) as golds, closing(Session(server)) as session:
        failing = tuple(number for number, item in enumerate(items) if not _earns_one(session, golds, item))
    return GoldCheck(server.identity, server.comparable, len(items), failing)


def read(path: Path, dev: Path | None = None) -> list[Episode]:
    """The episodes of a recorded run in the file's order, each with its item out of `dev`."""
    records = _json(path, dict)
    items = read_items(dev or _items_beside(path))
    try:
        return [_episode(record, items) for record in records.values()]
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{path}: not a run that InterCode recorded on these items ({reason}).") from None


def read_items(dev: Path) -> list[Item]:
    """The development items of a file in InterCode's format."""
    try:
        return [Item(str(item["db"]), str(item["gold"]), str(item["query"])) for item in _json(dev, list)]
    except (KeyError, TypeError):
        raise UserError(f"{dev}: items need `db`, `gold` and `query`; give InterCode's {DEV_ITEMS}.") from None


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _compare_episode(session: Session, golds: Golds, episode: Episode, tally: Counter[str]) -> Iterator[Difference]:
    answer = Answer(None)
    for turn in episode.turns:
        if turn.statement is not None:
            answer = session.ask(turn.statement)
            pair = _pair(turn.statement, turn.observation, answer, episode.react)
            tally["statements"] += 1
            if normal(pair.seen) != normal(pair.recorded):
                yield Difference(episode.number, turn.number, classify(pair), pair)
        if turn.reward is not None:
            tally["rewards"] += 1
            gold = golds.rows(episode.item)
            tally["equal rewards"] += math.isclose(reward(answer.rows, gold), turn.reward)
            tally["equal overlaps"] += math.isclose(overlap(answer.rows, gold), turn.reward)


def _pair(statement: str, recorded: str, answer: Answer, react: bool) -> Pair:
    """What was recorded beside what upstream's loop would have shown of `answer`."""
    shown = _shown(answer, react)
    seen = next((text for text in shown if normal(text) == normal(recorded)), shown[0])
    return Pair(statement, recorded, seen, tuple(map(str, answer.rows or ())))


def _shown(answer: Answer, react: bool) -> list[str]:
    if answer.error:
        return [f"{ERROR}{answer.error}"[: REACT_CHARACTERS if react else None]]
    if answer.rows is None or not react:
        return [str(answer.rows)]
    return [str(answer.rows[:rows]) for rows in REACT_ROWS]


def _earns_one(session: Session, golds: Golds, item: Item) -> bool:
    session.use(item.database)
    return reward(session.ask(item.gold).rows, golds.rows(item)) == 1.0


def _episode(record: dict[str, Any], items: Sequence[Item]) -> Episode:
    number = record["task_id"]
    if record["query"] != items[number].question:
        raise ValueError(f"item {number} asks something else")
    history = record["turn_history"]
    react = "thoughts" in history
    # A call that the model's provider refused left an action without an observation, at the end.
    turns = zip(history["actions"], history["observations"], history["rewards"], strict=False)
    sent = _react_turn if react else _plain_turn
    found = (sent(number, *turn) for number, turn in enumerate(turns))
    return Episode(number, items[number], tuple(turn for turn in found if turn), react)


def _plain_turn(number: int, action: str, observation: str, earned: float) -> Turn | None:
    """A statement, submitted right after; None for a text without one, which upstream answered itself."""
    answered = observation == "None" or observation.startswith(("[", ERROR))
    return Turn(number, action, observation, earned) if answered else None


def _react_turn(number: int, action: str, observation: str, earned: float) -> Turn | None:
    """`submit`, or what stands in `execute[...]` up to a semicolon; None for anything else."""
    if action == "submit":
        return Turn(number, None, observation, earned)
    found = _EXECUTE.search(action)
    return Turn(number, found[1].partition(";")[0], observation, None) if found else None


def _items_beside(path: Path) -> Path:
    for folder in (path.parent, path.parent.parent):
        if (folder / DEV_ITEMS).is_file():
            return folder / DEV_ITEMS
    raise UserError(f"{path}: a record names no databases; give InterCode's {DEV_ITEMS} as well, which does.")


def _json(path: Path, kind: type[Any]) -> Any:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not readable as JSON ({error}).") from None
    if not isinstance(content, kind) or not content:
        raise UserError(f"{path}: holds no {kind.__name__} of items; give a file in InterCode's format.")
    return content
