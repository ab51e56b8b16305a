"""What the analysis of failures is made of: the episodes that agents explored with, with the name of whose they are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from coevolve.config.suite import Suite
from coevolve.report.stats import Point
from coevolve.storage import jsonl
from coevolve.types import Agent, Protocol, Trajectory

#: Method, environment, seed, iteration and agent.
ExplorationKey = tuple[str, str, int, int, str]
#: What is measured of an episode.
Measure = Callable[[Trajectory], float]


@dataclass(frozen=True)
class Exploration:
    """One agent's episodes in one iteration of a method, for one seed; `source` names their file.

    In iteration 1 agents play with their base policies, so several methods can have the same file. `note` is what has
    to be said beside results on this environment.
    """

    model: str
    protocol: Protocol
    method: str
    env: str
    seed: int
    iteration: int
    agent: Agent
    episodes: tuple[Trajectory, ...]
    source: str = ""
    note: str = ""


def read(suite: Suite, episodes: Mapping[ExplorationKey, Path]) -> list[Exploration]:
    """The explorations of the suite's one model; `episodes` are files by method, environment, seed, iteration, agent.

    Each file is read once, however many methods share it.
    """
    (model,) = suite.models.values()
    read_file = functools.cache(lambda path: tuple(jsonl.read(path, Trajectory)))
    return [
        Exploration(
            model=model.label,
            protocol=suite.protocol,
            method=method,
            env=env,
            seed=seed,
            iteration=iteration,
            agent=cast(Agent, agent),
            episodes=read_file(path),
            source=path.as_posix(),
            note=suite.envs[env].note,
        )
        for (method, env, seed, iteration, agent), path in episodes.items()
    ]


def of(explorations: Sequence[Exploration], method: str, env: str, agent: Agent | None = None) -> list[Exploration]:
    """Those of a method on an environment, of all its agents or of one."""
    own = [e for e in explorations if (e.method, e.env) == (method, env)]
    return [e for e in own if agent in (None, e.agent)]


def points(explorations: Sequence[Exploration], measure: Measure) -> list[Point]:
    """What is measured of each episode, with its task and seed."""
    return [(e.task.task_id, one.seed, measure(e)) for one in explorations for e in one.episodes]


def seeds(explorations: Sequence[Exploration]) -> list[int]:
    """The seeds there are."""
    return sorted({one.seed for one in explorations})


def tasks(explorations: Sequence[Exploration]) -> list[str]:
    """The tasks that were explored."""
    return sorted({e.task.task_id for one in explorations for e in one.episodes})


def is_outcome(outcome: str, threshold: float) -> Measure:
    """1 for an episode that ends so, else 0. `success` is r = 1, `hard_negative` threshold <= r < 1, `failure` less.

    `extreme` is a reward of 0 or less, or of 1.
    """

    def measure(episode: Trajectory) -> float:
        own = "success" if not episode.is_failure else "hard_negative" if episode.reward >= threshold else "failure"
        extreme = episode.reward <= 0.0 or not episode.is_failure
        return float(extreme if outcome == "extreme" else own == outcome)

    return measure
