"""What the stages ask of WebShop; see `coevolve.envs.registry.Domain` and `Preparing`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from coevolve.envs.base import Setup, TaskSplit
from coevolve.envs.experts import Experts
from coevolve.envs.webshop import experts as webshop_experts
from coevolve.envs.webshop import prepared_shop, task_env, tasks
from coevolve.types import Task


def prepare(setup: Setup, out: Path) -> dict[str, Any]:
    """The shop, its frozen goals and what is known of both."""
    return prepared_shop.prepare(setup.config, setup.key, out).model_dump(mode="json")


def select(setup: Setup) -> TaskSplit:
    """The tasks a suite uses."""
    goals = prepared_shop.read_goals(_folder(setup))
    return tasks.select(setup.config.tasks, goals, setup.config.splits, setup.quirks.overlap)


def experts(setup: Setup, wanted: Sequence[Task]) -> Experts:
    """Experts, played in the shop or read."""
    return webshop_experts.experts(setup, _folder(setup), wanted)


def pool(setup: Setup, n: int) -> AbstractContextManager[Sequence[task_env.WebShopTaskEnv]]:
    """Environments in one shop."""
    return task_env.pool(setup.config, setup.quirks, _folder(setup), setup.chance, n)


def _folder(setup: Setup) -> Path:
    assert setup.prepared is not None, "the stage `prepare` runs before all others"
    return setup.prepared
