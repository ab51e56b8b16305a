"""Which module stands behind each kind of environment.

A module is loaded by name, never imported by a stage: a job's code digest then covers its own environment and no
other, and an edit of one environment reruns nothing of another.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, cast

from coevolve.config.environments import EnvConfig
from coevolve.envs.base import Env, Selection, Setup
from coevolve.envs.experts import Experts
from coevolve.types import Task


class Domain(Protocol):
    """What the stages ask of an environment's package; `setup.config` is the section of its own kind."""

    def select(self, setup: Setup) -> Selection:
        """The tasks a suite uses; raises `UserError` naming the key that leaves a list empty."""
        ...

    def experts(self, setup: Setup, wanted: Sequence[Task]) -> Experts:
        """One expert trajectory per wanted task at most, and why others have none."""
        ...

    def pool(self, setup: Setup, n: int) -> AbstractContextManager[Sequence[Env]]:
        """`n` environments for as many threads; servers and files behind them end with the block."""
        ...


class Preparing(Protocol):
    """What the stage `prepare` asks of the packages whose section says `prepared`."""

    def prepare(self, setup: Setup, out: Path) -> dict[str, Any]:
        """Make in the folder `out` what all jobs of the environment share; counts for the provenance."""
        ...


def domain(config: EnvConfig) -> Domain:
    """The package of an environment's kind."""
    return cast(Domain, importlib.import_module(config.module))
