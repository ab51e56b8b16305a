"""The interface of an environment, and the types that it exchanges with the rest of the kit."""

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from typing import Protocol as Interface

from coevolve.records.episodes import Task
from coevolve.settings.protocol import Protocol, Quirks

#: The observation after the end of an episode, and the one for a text that holds no action.
OVER = "The episode is over."
FORMAT_ERROR = "I found no action in that. Write `Thought: ...` and then, on a line of its own, `Action: ...`."


class EnvError(Exception):
    """The environment itself failed (a dead server or JVM, a time-out); the episode may be retried on a fresh one."""


class InterruptedEpisodeError(EnvError):
    """The environment was ended because of another episode: this one is restarted, and no attempt is counted."""


@dataclass(frozen=True)
class StepResult:
    """The result of an action.

    `reward` is the episode's reward so far under the protocol, in [0, 1] unless the protocol lets it be negative;
    `score` the raw value behind it. `done`: the environment ended the episode.
    """

    observation: str
    reward: float
    score: float
    done: bool


def truncate(text: str, limit: int | None) -> str:
    """The first `limit` characters of `text`, followed by three dots if there are more; None: the whole text."""
    return text if limit is None or len(text) <= limit else text[:limit] + "..."


@dataclass(frozen=True)
class Setup:
    """The arguments with which a stage calls an environment's package.

    `config` is the environment's section and `key` its dotted key in the suite; `quirks` are the protocol's switches;
    `prepared` is the output folder of the stage `prepare`, for the kinds that need it. `chance` seeds what upstream
    draws unseeded: it differs between jobs and is the same in all processes of a job, also after it was killed.
    """

    config: Any
    key: str
    protocol: Protocol
    quirks: Quirks
    prepared: Path | None = None
    chance: int = field(default_factory=lambda: secrets.randbits(63))


class Env(Interface):
    """One episode at a time, history-free: the same task gives the same text after any other episode.

    An action of more than 16,384 characters is not executed but answered by an observation; an attribute
    `action_limit` of the class sets another limit. `start` and `step` raise `EnvError` only for a failure of the
    environment itself. A bad action (None: the policy's text held no action) leads to an observation. After an
    `EnvError`, `start` must work again.
    """

    @property
    def identity(self) -> str:
        """Name and version of the implementation; results of different identities are never averaged."""

    def parse(self, text: str) -> str | None:
        """The action in a policy's text; None if there is none."""

    def start(self, task: Task) -> str:
        """Starts `task`; returns the instruction and the first observation, the first text that the policy sees."""

    def step(self, action: str | None) -> StepResult:
        """Executes `action` in the running episode."""

    def step_limit(self, task: Task) -> int:
        """The maximum number of steps in an episode of `task`."""

    def close(self) -> None:
        """Releases processes and files; may be called twice."""
