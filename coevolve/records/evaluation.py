"""Evaluated episodes, and counts of the episodes that a stage played."""

import operator
from collections import Counter
from collections.abc import Hashable, Iterable
from enum import StrEnum
from typing import Any, NamedTuple

from pydantic import Field

from coevolve.records.base import Record, is_none
from coevolve.records.episodes import Reward, StopReason, Turn

#: Method, environment, seed, iteration and agent of explored episodes.
ExplorationKey = tuple[str, str, int, int, str]
#: Method, model, environment, seed, iteration and agent of a pairing's summary.
SummaryKey = tuple[str, str, str, int, int, str]


class ResultFile(NamedTuple):
    """A file, and what it is a result of; methods that share a result have an entry each with the same path.

    `iteration` is 0 for what a method starts from. Of an environment's own files only `env` is given.
    """

    path: str
    env: str
    method: str = ""
    model: str = ""
    seed: int = 0
    iteration: int = 0
    agent: str = "target"


class TurnFlaw(StrEnum):
    """Why a turn did nothing or was not whole; of a turn with several flaws the first counts."""

    CUT = "cut"  # sampling stopped at the token limit
    EMPTY = "empty"
    NO_ACTION = "no_action"


def turn_flaws(turns: Iterable[Turn], needs_actions: bool) -> dict[TurnFlaw, int]:
    """The number of turns by their flaw; `needs_actions`: one without an action has a flaw."""
    counts: Counter[TurnFlaw] = Counter()
    for turn in turns:
        if turn.truncated:
            counts[TurnFlaw.CUT] += 1
        elif not turn.text.strip():
            counts[TurnFlaw.EMPTY] += 1
        elif needs_actions and turn.action is None:
            counts[TurnFlaw.NO_ACTION] += 1
    return dict(counts)


class EvalRecord(Record):
    """One evaluated episode, as input of the statistics.

    `environment` is the environment's name and version, `turns` the number of turns. `samples`: the episode is the best
    of so many (Best-of-N); omitted from JSON if 1. `flaws` counts the turns with a flaw; omitted without one.
    """

    task_id: str
    split: str
    seed: int
    environment: str = ""
    reward: Reward
    success: bool
    stop: StopReason
    turns: int
    trajectory_id: str
    samples: int = Field(default=1, ge=1, exclude_if=lambda samples: samples == 1)
    flaws: dict[TurnFlaw, int] = Field(default={}, exclude_if=operator.not_)

    def unique_key(self) -> Hashable:
        """(task, seed, episode): a task that is listed twice has a record of each of its episodes."""
        return self.split, self.task_id, self.seed, self.trajectory_id


class EpisodeNotes(Record):
    """Counts of the episodes that a stage played or joined, written as its notes.

    `environments`: names and versions. `format_errors` and `truncated_turns` count turns, `retried` episodes. `tokens`
    were sampled for these episodes, `sampled_tokens` of them by this job. `spent` is the cost of an endpoint's answers,
    `left_out` the number of tasks without an evaluation record, `chance` the seed of what the protocol draws in each
    job (`coevolve.envs.base.Setup`); each is omitted where the stage has none.
    """

    episodes: int
    environments: tuple[str, ...]
    mean_reward: float
    failures: int
    stops: dict[StopReason, int]
    format_errors: int
    truncated_turns: int
    retried: int
    tokens: int
    sampled_tokens: int
    spent: dict[str, Any] | None = Field(default=None, exclude_if=is_none)
    left_out: int | None = Field(default=None, exclude_if=is_none)
    chance: int | None = Field(default=None, exclude_if=is_none)
