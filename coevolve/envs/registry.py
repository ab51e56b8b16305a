"""The contracts of an environment's package, and the lookup of its modules by name.

The package of kind `K` is `coevolve.envs.K`. Every package has the modules `config` (the section, see
`coevolve.envs.section`) and `domain` (`Domain`). The others are optional: `gold` (`Gold`), `synthesis`
(`coevolve.envs.synthesis.TaskSynthesis`), and `installation`, about the environment on this machine. That may have
`install(config)`, `check(config)`, `started(config)` and the names of `Replay`; no job imports it. No stage imports a
package: a job's code digest covers its own environment and no other.
"""

from __future__ import annotations

import argparse
import functools
import importlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from coevolve.assets.checks import Check
from coevolve.envs.base import Env, Setup
from coevolve.envs.section import EnvConfig, EnvSection, has_module, known_kinds, module_name, section_class
from coevolve.records.episodes import Task, Turn

if TYPE_CHECKING:
    from coevolve.envs.experts import Experts
    from coevolve.envs.task_split import TaskSplit


class Domain(Protocol):
    """The module `domain`; `setup.config` is the section of its own kind."""

    def select(self, setup: Setup) -> TaskSplit:
        """The tasks that a suite uses; raises `UserError` naming the key that leaves a list empty."""

    def experts(self, setup: Setup, wanted: Sequence[Task]) -> Experts:
        """At most one expert trajectory per wanted task, and a drop with its reason for each other task."""

    def pool(self, setup: Setup, n: int) -> AbstractContextManager[Sequence[Env]]:
        """`n` environments for as many threads; their servers and files end with the block."""


class Preparing(Protocol):
    """The module `domain` of an environment whose section is `prepared`."""

    def prepare(self, setup: Setup, out: Path) -> dict[str, Any]:
        """Writes the files that all jobs of the environment share to the folder `out`; notes for the provenance."""


class Replay(Protocol):
    """The names of the module `installation` that make the command `coevolve replay <kind>`."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments of `run`."""

    def run(self, options: argparse.Namespace, write: Callable[[str], None]) -> int:
        """Replays, writes the result line by line with `write`, and returns the exit status."""


class Gold(Protocol):
    """The module `gold`."""

    def generate(self, setup: Setup, work: Path, out: Path) -> dict[str, Any]:
        """Writes expert trajectories of the training tasks to the folder `out`; notes for the provenance.

        `work` keeps the trajectories made so far when the job is killed.
        """


def domain(config: EnvConfig) -> Domain:
    """The domain of an environment."""
    return cast(Domain, importlib.import_module(module_name(config.kind, "domain")))


@functools.cache
def optional(kind: str, name: str) -> Any:
    """An optional module of an environment's package; None if the package, or the module, does not exist."""
    return importlib.import_module(module_name(kind, name)) if has_module(kind, name) else None


def replays() -> dict[str, Replay]:
    """The replays of all environments that have one, by kind."""
    installations = {kind: optional(kind, "installation") for kind in known_kinds()}
    return {kind: installation for kind, installation in installations.items() if hasattr(installation, "HELP")}


def check(kind: str, config: EnvConfig | None, *, start: bool) -> Check | None:
    """Whether this machine can run an environment (`config` None: without a suite); None if its package cannot say.

    `start`: what the check would only look for is started, if the package has a function `started`.
    """
    installation = optional(kind, "installation")
    function = (start and getattr(installation, "started", None)) or getattr(installation, "check", None)
    return cast(Check, function(config)) if function else None


def install(configs: Iterable[EnvConfig]) -> None:
    """Installs what environments need beyond pip, possibly from the network, so no job calls it.

    Raises `UserError` for the first that cannot be installed.
    """
    for config in configs:
        installation = optional(config.kind, "installation")
        if hasattr(installation, "install"):
            installation.install(config)


def is_refused(kind: str, before: str, turn: Turn) -> bool:
    """Whether an environment did not execute the turn's action; False for a kind without a package."""
    section = _section_class(kind)
    return section is not None and section.is_refused(before, turn.action, turn.observation)


@functools.cache
def _section_class(kind: str) -> type[EnvSection] | None:
    return section_class(kind) if kind in known_kinds() else None
