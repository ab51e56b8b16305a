"""What the kit asks of an environment."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from typing import Protocol as Interface

from coevolve.config.sections import Quirks
from coevolve.types import Drop, Protocol, Scalar, Task

#: What every environment answers once an episode is over, and the text ones where a policy's text holds no action.
OVER = "The episode is over."
FORMAT_ERROR = "I found no action in that. Write `Thought: ...` and then, on a line of its own, `Action: ...`."


class EnvError(Exception):
    """The environment itself failed (a dead server or JVM, a time-out); the episode may be retried on a fresh one."""


@dataclass(frozen=True)
class StepResult:
    """What an action met.

    `reward` is the episode's reward so far under the protocol, in [0, 1] unless the protocol lets it be negative;
    `score` the raw value behind it. `done`: the environment ended the episode.
    """

    observation: str
    reward: float
    score: float
    done: bool
    info: dict[str, Scalar] = field(default_factory=dict)


def cut(text: str, limit: int | None) -> str:
    """At most `limit` characters of `text` (None: all), and three dots where some are missing."""
    return text if limit is None or len(text) <= limit else text[:limit] + "..."


@dataclass(frozen=True)
class Setup:
    """Where the stages enter an environment.

    `config` is the environment's section and `key` its place in the suite; `quirks` are the protocol's switches;
    `prepared` is the folder of what the stage `prepare` made, for the kinds that need it. `chance` is the seed of what
    upstream draws unseeded: another one in every job, and one for all of its processes.
    """

    config: Any
    key: str
    protocol: Protocol
    quirks: Quirks
    prepared: Path | None = None
    chance: int = field(default_factory=lambda: secrets.randbits(63))


@dataclass(frozen=True)
class Selection:
    """The tasks of a suite. `sft` and `explore` are disjoint unless the suite lets exploration repeat `sft`.

    `evaluate` holds all evaluation splits, each task naming its own. `overlap` names the training tasks that the
    source also uses for evaluation; `drops` those removed for it, and items that cannot be used.
    """

    sft: tuple[Task, ...]
    explore: tuple[Task, ...]
    evaluate: tuple[Task, ...]
    overlap: tuple[str, ...] = ()
    drops: tuple[Drop, ...] = ()

    @property
    def training(self) -> tuple[Task, ...]:
        """What is fine-tuned on or explored, each task once."""
        return tuple({task.task_id: task for task in (*self.sft, *self.explore)}.values())


class Env(Interface):
    """One episode at a time, history-free: the same task gives the same text after any other episode.

    `start` and `step` raise :class:`EnvError` only when the environment itself is broken; a bad action (None: the
    policy's text held no action) is answered by an observation. After an EnvError the instance must be able to `start`
    again.
    """

    @property
    def identity(self) -> str:
        """What answers here, with its version: results of different identities are never averaged."""
        ...

    def parse(self, text: str) -> str | None:
        """The action in a policy's text, None if it holds none."""
        ...

    def start(self, task: Task) -> str:
        """Begin `task` and return the text the policy sees first: the instruction and the first observation."""
        ...

    def step(self, action: str | None) -> StepResult:
        """Do `action` in the running episode."""
        ...

    def step_limit(self, task: Task) -> int:
        """Largest number of steps an episode of `task` may have."""
        ...

    def close(self) -> None:
        """Release processes and files; harmless when called twice."""
        ...
