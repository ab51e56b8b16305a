"""What the stages ask of ScienceWorld; see `coevolve.envs.registry.Domain`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from coevolve.envs.base import Selection, Setup
from coevolve.envs.experts import Experts
from coevolve.envs.sciworld import env, tasks
from coevolve.envs.sciworld.experts import read
from coevolve.types import Task


def select(setup: Setup) -> Selection:
    """The tasks a suite uses."""
    return tasks.select(setup.config.tasks, setup.config.splits, setup.quirks.overlap)


def experts(setup: Setup, wanted: Sequence[Task]) -> Experts:
    """The experts in the configured file."""
    return read(setup.config.experts, wanted, f"{setup.key}.experts")


def pool(setup: Setup, n: int) -> AbstractContextManager[Sequence[env.SciWorld]]:
    """Environments, sixteen to a simulator."""
    return env.pool(setup.config, setup.quirks, n)
