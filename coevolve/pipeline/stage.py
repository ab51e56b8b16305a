"""Stages and planned jobs: what a kind of job is, and what each job of a suite reads, writes and is about.

A stage's module in `coevolve.pipeline.stages` has its declaration with its inputs, its cost and its `run`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from coevolve.pipeline.branch import AgentName, Branch, agent_of
from coevolve.records.evaluation import ResultFile
from coevolve.records.provenance import Notes, Workload
from coevolve.storage.files import PROVENANCE

if TYPE_CHECKING:
    from coevolve.config.suite import Suite
    from coevolve.pipeline.job import Job

#: The folder of what all suites share: downloads, models of the hub, dequantised models.
MIRROR = "data/mirror"
#: Input files of a job by name: one, several, or several with what they are results of.
Inputs = dict[str, str | list[str] | list[ResultFile]]


def files_by_name(inputs: Inputs) -> dict[str, list[str]]:
    """All input files of each name, each once."""
    results = {name: sorted({file.path for file in files}) for name, files in results_by_name(inputs).items()}
    listed = {name: [files] if isinstance(files, str) else cast(list[str], files) for name, files in inputs.items()}
    return listed | results


def files_of(inputs: Inputs) -> list[str]:
    """All input files."""
    return [path for paths in files_by_name(inputs).values() for path in paths]


def results_by_name(inputs: Inputs) -> dict[str, list[ResultFile]]:
    """The input files that are given with what they are results of."""
    listed = {name: files for name, files in inputs.items() if files and isinstance(files[0], ResultFile)}
    return {name: cast(list[ResultFile], files) for name, files in listed.items()}


def work_folder(result: Path) -> Path:
    """Where the job that makes the folder `result` keeps its lock, checkpoints and journals until it ends."""
    return result.parent / f".work-{result.name}"


def no_work(suite: Suite, job: PlannedJob) -> Workload:
    """The `cost` of a stage that computes next to nothing."""
    return Workload()


@dataclass(frozen=True)
class Stage:
    """The declaration of a stage.

    `run` writes `files` into a folder. A job may read the config sections `reads`; it loads these `modules` of the
    packages of its environments (`coevolve.envs.registry`), and the engine (`coevolve.policies.base`) that `plays`
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
    def function(self) -> str:
        """The name of `run` in the stage's module."""
        return "run"

    @property
    def shared(self) -> bool:
        """Whether its results lie in `data/mirror`, for all suites."""
        return self.pin is not None

    @property
    def network(self) -> bool:
        """Whether it fetches from outside."""
        return self.shared and not self.image


@dataclass(frozen=True)
class Subject:
    """What jobs of an iteration are about: a model, an environment, and a branch (method, seed and iteration)."""

    model: str
    env: str
    branch: Branch

    def at(self, branch: Branch) -> Subject:
        """The same model and environment on another branch."""
        return Subject(self.model, self.env, branch)

    @property
    def folder(self) -> str:
        """The folder of its results, below that of the suite."""
        return f"{self.model}/{self.env}/{self.branch}"

    @property
    def wildcards(self) -> dict[str, str]:
        """Its names, as provenances have them."""
        return {"model": self.model, "env": self.env, "branch": str(self.branch)}


@dataclass(frozen=True, eq=False)
class PlannedJob:
    """A job of a stage: its files `names` lie in `root`/`result`.

    `wildcards` are the names of what it is about, such as `env`, `branch` and `agent`; `branch` is the branch among
    them.
    """

    stage: Stage
    root: str
    result: str
    wildcards: dict[str, str]
    inputs: Inputs
    names: tuple[str, ...]
    branch: Branch | None = None

    def __getitem__(self, name: str) -> str:
        """The path of one of its files."""
        return f"{self.folder}/{name}"

    @property
    def folder(self) -> str:
        """The folder of its files."""
        return f"{self.root}/{self.result}"

    @property
    def key(self) -> str:
        """The path that no other job has: its folder, or of a download its file."""
        return self.folder if self.leaves_provenance else self[self.names[0]]

    @property
    def name(self) -> str:
        """Its key below its root."""
        return self.key.removeprefix(f"{self.root}/")

    @property
    def files(self) -> list[str]:
        """Its files, without its provenance."""
        return [self[name] for name in self.names]

    @property
    def leaves_provenance(self) -> bool:
        """Whether its provenance is one of its outputs; a folder of downloads has a job for each file."""
        return bool(self.stage.files)

    @property
    def outputs(self) -> list[str]:
        """Its files with its provenance."""
        return [*self.files, *([self[PROVENANCE]] if self.leaves_provenance else [])]

    @property
    def agent(self) -> AgentName:
        """The agent that it is about: that of the wildcard `agent`, or of the `whole` whose part it plays."""
        return agent_of(self.wildcards)

    @property
    def subject(self) -> Subject:
        """The model, environment and branch that it is about."""
        assert self.branch is not None
        return Subject(self.wildcards["model"], self.wildcards["env"], self.branch)


#: Config sections that jobs in an environment, jobs that play, jobs that only sample, and products read.
ENVIRONMENT = ("envs", "protocol", "protocols")
EPISODES = ("models", *ENVIRONMENT, "rollout")
SAMPLED = (*EPISODES, "sampler")
TABLE = (
    "suite", "protocol", "methods", "seeds", "looks", "models", "envs", "iterations", "recipes", "report", "without",
)  # fmt: skip
