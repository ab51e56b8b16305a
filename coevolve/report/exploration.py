"""The episodes of the agents' explorations, by method, environment, seed, iteration and agent."""

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from coevolve.config.suite import Suite, models_of
from coevolve.records.base import Record
from coevolve.records.episodes import Agent, StopReason, Trajectory
from coevolve.records.evaluation import ResultFile, TurnFlaw, turn_flaws
from coevolve.settings.protocol import Protocol
from coevolve.storage import jsonl


class AgentRecord(Record):
    """A value measured of one agent in one iteration of a method, for one seed."""

    method: str
    env: str
    seed: int
    iteration: int
    agent: Agent


class ExploredEpisode(NamedTuple):
    """What is kept of an explored episode: a report holds those of all methods and seeds, and their texts on disk."""

    task_id: str
    sample: int
    reward: float
    stop: StopReason
    environment: str
    turns: int
    flaws: Mapping[TurnFlaw, int]

    @classmethod
    def of(cls, episode: Trajectory, needs_actions: bool = True) -> "ExploredEpisode":
        """The episode without its texts; equal names share their memory."""
        task_id, environment = sys.intern(episode.task.task_id), sys.intern(episode.environment)
        flaws = turn_flaws(episode.turns, needs_actions)
        return cls(task_id, episode.sample, episode.reward, episode.stop, environment, len(episode.turns), flaws)

    @property
    def is_failure(self) -> bool:
        """Whether r < 1 (section 3)."""
        return self.reward < 1.0


@dataclass(frozen=True)
class Exploration:
    """One agent's episodes in one iteration of a method, for one seed; several methods can share the file `source`."""

    model: str
    protocol: Protocol
    method: str
    env: str
    seed: int
    iteration: int
    agent: Agent
    episodes: tuple[ExploredEpisode, ...]
    source: str = ""
    note: str = ""

    @property
    def names(self) -> dict[str, Any]:
        """The fields of an `AgentRecord`."""
        return {name: getattr(self, name) for name in AgentRecord.model_fields}


def read(suite: Suite, episodes: Iterable[ResultFile]) -> list[Exploration]:
    """The explorations of the suite's single model; each file is read once, one episode at a time."""
    (model,) = models_of(suite)

    @functools.cache
    def read_file(path: str, needs_actions: bool) -> tuple[ExploredEpisode, ...]:
        return tuple(ExploredEpisode.of(each, needs_actions) for each in trajectories(Path(path)))

    return [
        Exploration(
            model=suite.models[model].label,
            protocol=suite.protocol,
            method=file.method,
            env=file.env,
            seed=file.seed,
            iteration=file.iteration,
            agent=cast(Agent, file.agent),
            episodes=read_file(file.path, suite.envs[file.env].needs_actions),
            source=file.path,
            note=suite.envs[file.env].note,
        )
        for file in episodes
    ]


def trajectories(path: Path) -> Iterator[Trajectory]:
    """The episodes of a file, one at a time, without those whose environment failed: as for pairs, no agent failed."""
    return (each for each in jsonl.stream(path, Trajectory) if each.stop is not StopReason.ENV_ERROR)


def of(explorations: Sequence[Exploration], method: str, env: str, agent: Agent | None = None) -> list[Exploration]:
    """The explorations of a method in an environment, of one agent or (None) of all."""
    return [e for e in explorations if (e.method, e.env) == (method, env) and agent in (None, e.agent)]


def seeds(explorations: Sequence[Exploration]) -> list[int]:
    """The seeds, sorted."""
    return sorted({each.seed for each in explorations})


def tasks(explorations: Sequence[Exploration]) -> list[str]:
    """The explored tasks, sorted."""
    return sorted({e.task_id for each in explorations for e in each.episodes})


def outcomes(episode: ExploredEpisode, threshold: float) -> set[str]:
    """What an episode counts as, one of the first three, and perhaps the last.

    `success`: r = 1, `hard_negative`: threshold <= r < 1, `failure`: r < threshold, `extreme`: r <= 0 or r = 1.
    """
    failed = "hard_negative" if episode.reward >= threshold else "failure"
    extreme = {"extreme"} if episode.reward <= 0.0 or not episode.is_failure else set()
    return extreme | {failed if episode.is_failure else "success"}
