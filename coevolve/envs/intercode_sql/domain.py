"""What the stages ask of InterCodeSQL; see `coevolve.envs.registry.Domain`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from coevolve.envs.base import Setup, TaskSplit
from coevolve.envs.experts import Experts
from coevolve.envs.intercode_sql import env, tasks
from coevolve.envs.intercode_sql import experts as sql_experts
from coevolve.types import Task


def select(setup: Setup) -> TaskSplit:
    """The tasks a suite uses."""
    return tasks.select(setup.config, setup.quirks.overlap)


def experts(setup: Setup, wanted: Sequence[Task]) -> Experts:
    """Experts, played on the server or read."""
    return sql_experts.experts(setup, wanted)


def pool(setup: Setup, n: int) -> AbstractContextManager[Sequence[env.InterCodeSql]]:
    """Environments on one server."""
    return env.pool(setup.config, setup.quirks, n)
