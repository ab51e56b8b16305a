"""What agents explored with, read from the files of a plan."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from coevolve.report.exploration import Exploration
from coevolve.storage import jsonl
from coevolve.types import Agent, Trajectory
from coevolve.workflow.plan import Plan


def explorations(plan: Plan, methods: Sequence[str]) -> Iterator[Exploration]:
    """All explorations of methods; each file is read once. Raises `UserError` where one does not exist."""
    suite = plan.suite
    (model,) = suite.models.values()
    read = functools.cache(lambda path: tuple(jsonl.read(Path(path), Trajectory)))
    for (method, env, seed, iteration, agent), path in plan.explorations(methods).items():
        yield Exploration(
            model=model.label,
            protocol=suite.protocol,
            method=method,
            env=env,
            seed=seed,
            iteration=iteration,
            agent=cast(Agent, agent),
            episodes=read(path),
            source=path,
            note=suite.envs[env].note,
        )
