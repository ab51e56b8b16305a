"""What the kit's server answers beside InterCode's recorded runs, with every difference classified.

The recorded episodes shared one writable connection, so that they saw each other's tables and settings. Here every
episode has its own read-only session.
"""

import math
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field

from envs.intercode_sql.difference_classes import SHARED_STATE, ResultPair, classify, without_bytes_prefix

from coevolve.envs.intercode_sql.env import GoldQueries
from coevolve.envs.intercode_sql.recorded_runs import ERROR_PREFIX
from coevolve.envs.intercode_sql.reward import overlap
from coevolve.envs.intercode_sql.session import QueryResult, SqlSession

#: Numbers of rows to which upstream's ReAct loop truncated results: the usual one first, then those of later reruns.
REACT_ROWS = (25, 10, 15, 30)
#: Number of characters to which it truncated errors.
REACT_CHARACTERS = 350


@dataclass
class Comparison:
    """Agreement of a server with a recorded run, with `b'...'` read as `'...'`.

    A submission repeats the last text and is no statement. Upstream computed the rewards of 2023 without the factor for
    order, which was added later, so they are to be compared with `equal_overlaps`.
    """

    statements: int = 0
    rewards: int = 0
    equal_overlaps: int = 0
    #: Item, turn, class and both texts of each result that differs.
    differences: list[tuple[int, int, str, ResultPair]] = field(default_factory=list)

    @property
    def by_class(self):
        return Counter(kind for _, _, kind, _ in self.differences)

    @property
    def identical_share(self):
        return 1 - len(self.differences) / self.statements

    @property
    def stateless_share(self):
        """The same without the statements whose recorded result depended on changes by earlier episodes."""
        state = sum(self.by_class[kind] for kind in SHARED_STATE)
        return 1 - (len(self.differences) - state) / (self.statements - state)


def compare(server, episodes):
    """Executes all statements of the episodes on the server, each episode in a new session."""
    comparison = Comparison()
    with closing(GoldQueries(server)) as gold_queries:
        for episode in episodes:
            with closing(SqlSession(server)) as session:
                session.use(episode.item.database)
                compare_episode(comparison, session, gold_queries.rows(episode.item), episode)
    return comparison


def compare_episode(comparison, session, gold, episode):
    result = QueryResult(None)
    for turn in episode.turns:
        if turn.statement is not None:
            result = session.execute(turn.statement)
            comparison.statements += 1
            texts = printed(result, episode.react)
            if without_bytes_prefix(turn.observation) not in map(without_bytes_prefix, texts):
                pair = ResultPair(turn.statement, turn.observation, texts[0], tuple(map(str, result.rows or ())))
                comparison.differences.append((episode.number, turn.number, classify(pair), pair))
        if turn.reward is not None:
            comparison.rewards += 1
            comparison.equal_overlaps += math.isclose(overlap(result.rows, gold), turn.reward)


def printed(result, react):
    """All texts that upstream's loop may have printed for a result, the most likely first."""
    if result.error:
        return [f"{ERROR_PREFIX}{result.error}"[: REACT_CHARACTERS if react else None]]
    if result.rows is None or not react:
        return [str(result.rows)]
    return [str(result.rows[:rows]) for rows in REACT_ROWS]
