"""What a stage is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from coevolve import seeds
from coevolve.config.environments import EnvConfig
from coevolve.config.sections import ModelConfig, Recipe
from coevolve.config.suite import Suite
from coevolve.envs.base import Setup
from coevolve.errors import UserError
from coevolve.storage import jsonl
from coevolve.types import Record
from coevolve.workflow.branch import AgentName, Branch, agent_name

R = TypeVar("R", bound=Record)
K = TypeVar("K")


@dataclass(frozen=True)
class Job:
    """One execution of a stage.

    `suite` holds only the sections the stage declared. `inputs` are files by name. `work` is a folder for checkpoints
    and journals that survives a killed job and is private to this job's fingerprint. `wildcards` say which model,
    environment, branch and agent it is about.
    """

    stage: str
    suite: Suite
    inputs: dict[str, list[Path]]
    wildcards: dict[str, str]
    work: Path
    threads: int

    @property
    def model(self) -> ModelConfig:
        """The job's base model."""
        return self.suite.models[self.wildcards["model"]]

    @property
    def env(self) -> EnvConfig:
        """The job's environment."""
        return self.suite.envs[self.wildcards["env"]]

    @property
    def setup(self) -> Setup:
        """Where the job enters its environment."""
        prepared = self.file("prepared").parent if "prepared" in self.inputs else None
        return Setup(self.env, f"envs.{self.wildcards['env']}", self.suite.protocol, self.suite.quirks, prepared)

    @property
    def branch(self) -> Branch:
        """Where in the method's history the job stands."""
        return Branch.parse(self.wildcards["branch"])

    @property
    def agent(self) -> AgentName:
        """The agent the job is about."""
        return agent_name(self.wildcards.get("agent") or self.wildcards.get("whole", "").rpartition("/")[2])

    @property
    def recipe(self) -> Recipe:
        """The job's method."""
        return self.suite.recipes[self.branch.method]

    @property
    def temperature(self) -> float:
        """At which agents explore: the method's own, else the protocol's."""
        own = self.suite.rollout.temperature
        return self.suite.quirks.exploration_temperature if own is None else own

    @property
    def seed(self) -> int:
        """The job's own seed, derived from the suite's seed and the job's names; a part has that of the whole."""
        whole = self.wildcards.get("whole", "")
        stage = {"": self.stage, "eval": "evaluate"}.get(whole, "rollout")
        names = (stage, self.wildcards.get("env", ""), str(self.branch), self.agent)
        return seeds.derive(self.branch.seed, *names)

    def files(self, name: str, tails: Mapping[K, str]) -> dict[K, Path]:
        """The input files called `name` by key, where `tails` are the ends of their paths.

        Raises `UserError` for a tail without a file, for a file with no such tail, and for two files with one tail.
        """
        ends, paths = set(tails.values()), dict[str, Path]()
        for path in self.inputs.get(name, []):
            tail = next((end for end in _ends(path) if end in ends), None)
            if tail is None:
                raise UserError(f"{path}: this stage reads no such `{name}`; leave it out.")
            if tail in paths:
                raise UserError(f"{path}: `{name}` has a second file {tail}, {paths[tail]}; give one of them.")
            paths[tail] = path
        for tail in tails.values():
            if tail not in paths:
                raise UserError(f"stage `{self.stage}`: the input {tail} is missing; give {name}=FILE.")
        return {key: paths[tail] for key, tail in tails.items()}

    def file(self, name: str) -> Path:
        """The one input file called `name`; raises `UserError` if there is none, or more than one."""
        paths = self.inputs.get(name, [])
        if len(paths) != 1:
            raise UserError(f"stage `{self.stage}`: {len(paths)} inputs `{name}`, it takes one; give {name}=FILE.")
        return paths[0]

    def policy(self, name: str) -> Path:
        """Directory of the input policy called `name`."""
        return self.file(name).parent

    def records(self, name: str, kind: type[R]) -> list[R]:
        """All records of the input file called `name`."""
        return jsonl.read(self.file(name), kind)


def _ends(path: Path) -> Iterator[str]:
    """Every end of a path, the longest first."""
    parts = path.as_posix().split("/")
    return ("/".join(parts[start:]) for start in range(len(parts)))
