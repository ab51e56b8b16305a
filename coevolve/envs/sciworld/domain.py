"""ScienceWorld's implementation of `coevolve.envs.registry.Domain`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from coevolve.envs.base import Setup, TaskSplit
from coevolve.envs.experts import Experts
from coevolve.envs.sciworld import env, tasks
from coevolve.envs.sciworld.experts import read
from coevolve.types import Task


def select(setup: Setup) -> TaskSplit:
    """The tasks of a suite."""
    return tasks.select(setup.config.tasks, setup.config.splits, setup.quirks.overlap)


def experts(setup: Setup, wanted: Sequence[Task]) -> Experts:
    """The expert trajectories in the configured file."""
    return read(setup.config.experts, wanted, f"{setup.key}.experts")


def pool(setup: Setup, n: int) -> AbstractContextManager[Sequence[env.SciWorld]]:
    """Environments, sixteen per simulator."""
    return env.pool(setup.config, setup.quirks, n)
