"""A stage: one kind of job. Its module in `coevolve.pipeline.stages` has its inputs, its cost and its `run`, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.records.provenance import Notes, Workload

if TYPE_CHECKING:
    from coevolve.config.suite import Suite
    from coevolve.pipeline.job import Job
    from coevolve.pipeline.planned import PlannedJob


def no_work(suite: Suite, job: PlannedJob) -> Workload:
    """The `cost` of a stage that computes next to nothing."""
    return Workload()


@dataclass(frozen=True)
class Stage:
    """The declaration of a stage.

    `run` writes `files` into a folder. A job may read the config sections `reads`; it loads these `modules` of the
    packages of its environments (`coevolve.envs.registry`), and the engine (`coevolve.policies.engines`) that `plays`
    gives for its sections and its model. It reruns when its sections, the code that it can reach, or its inputs change.
    `pin`: of a result in `data/mirror`, for all suites, the digest that its sections (as JSON data) decide, whatever
    code makes it.

    `cost` estimates the work of a job. `image` is the container image that jobs run in; empty: none. `launchable`:
    several processes can share a job.
    """

    help: str
    run: Callable[[Job, Path], Notes]
    reads: tuple[str, ...]
    files: tuple[str, ...]
    modules: tuple[str, ...] = ()
    plays: Callable[[Suite, str], str] | None = None
    pin: Callable[[Mapping[str, Any], Mapping[str, str]], str] | None = None
    cost: Callable[[Suite, PlannedJob], Workload] = no_work
    image: str = "envs"
    launchable: bool = False

    @property
    def module(self) -> str:
        """The stage's module."""
        return self.run.__module__

    @property
    def name(self) -> str:
        """The stage's name, which is its module's."""
        return self.module.rpartition(".")[2]

    @property
    def shared(self) -> bool:
        """Whether its results lie in `data/mirror`, for all suites."""
        return self.pin is not None

    @property
    def network(self) -> bool:
        """Whether it fetches from outside."""
        return self.shared and not self.image


#: Config sections that jobs in an environment, jobs that play, jobs that only sample, and products read.
ENVIRONMENT = ("envs", "protocol", "protocols")
EPISODES = ("models", *ENVIRONMENT, "rollout")
SAMPLED = (*EPISODES, "sampler")
TABLE = (
    "suite", "protocol", "methods", "seeds", "looks", "models", "envs", "iterations", "recipes", "report", "without",
)  # fmt: skip
