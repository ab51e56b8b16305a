"""What the stages ask of ScienceWorld; see `coevolve.envs.domains.Domain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from coevolve.config import Quirks, SciWorldConfig
from coevolve.envs.base import Selection
from coevolve.envs.experts import Experts
from coevolve.envs.sciworld import tasks
from coevolve.envs.sciworld.env import pool
from coevolve.envs.sciworld.experts import read
from coevolve.types import Task

__all__ = ["experts", "pool", "select"]


def select(config: SciWorldConfig, overlap: Literal["keep", "remove"]) -> Selection:
    """The tasks a suite uses."""
    return tasks.select(config.tasks, config.splits, overlap)


def experts(config: SciWorldConfig, quirks: Quirks, wanted: Sequence[Task], key: str) -> Experts:
    """The experts in the configured file; no quirk changes them."""
    del quirks
    return read(config.experts, wanted, f"{key}.experts")
