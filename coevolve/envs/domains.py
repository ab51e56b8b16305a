"""Which module stands behind each kind of environment.

A module is loaded by name, never imported by a stage: a job's code digest then covers its own environment and no
other, and an edit of one environment reruns nothing of another.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, cast

from coevolve.config import EnvConfig, Quirks
from coevolve.envs.base import Env, Selection
from coevolve.envs.experts import Experts
from coevolve.types import Task


class Domain(Protocol):
    """What the stages ask of an environment's package; `config` is the section of its own kind."""

    def select(self, config: Any, overlap: Literal["keep", "remove"]) -> Selection:
        """The tasks a suite uses; raises `UserError` naming the key that leaves a list empty."""
        ...

    def experts(self, config: Any, quirks: Quirks, wanted: Sequence[Task], key: str) -> Experts:
        """One expert trajectory per wanted task at most, and why others have none; `key` is the config's place."""
        ...

    def pool(self, config: Any, quirks: Quirks, n: int) -> AbstractContextManager[Sequence[Env]]:
        """`n` environments for as many threads; servers and files behind them end with the block."""
        ...


def domain(config: EnvConfig) -> Domain:
    """The package of an environment's kind."""
    return cast(Domain, importlib.import_module(config.module))
