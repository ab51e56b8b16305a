"""A job: one execution of a stage, with its config, inputs and seed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from coevolve import seeds
from coevolve.config.models import ModelConfig
from coevolve.config.suite import Suite
from coevolve.envs.section import EnvConfig
from coevolve.errors import UserError
from coevolve.methods.recipes import Recipe
from coevolve.pipeline.branch import AgentName, Branch, agent_of
from coevolve.policies.settings import VLLM_DEVICES, VllmDevices
from coevolve.records.base import Record
from coevolve.records.evaluation import ResultFile
from coevolve.storage import jsonl

R = TypeVar("R", bound=Record)
#: Of a job that is about no seed.
NO_BRANCH = Branch("", 0, 0)


def seed_of(stage: str, branch: Branch, wildcards: Mapping[str, str]) -> int:
    """A job's seed, derived from the suite's seed and the job's names; a shard has that of the undivided job."""
    stage = {"": stage, "eval": "evaluate"}.get(wildcards.get("whole", ""), "rollout")
    return seeds.derive(branch.seed, stage, wildcards.get("env", ""), str(branch), agent_of(wildcards))


@dataclass(frozen=True)
class Job:
    """One execution of a stage.

    `suite` holds only the sections that the stage declared. `inputs` are files by name; `results` are those of them
    that are given with what they are results of. `work` is a folder for checkpoints and journals:
    it survives a killed job, and no job with another fingerprint uses it. `wildcards` name the model, environment,
    branch and agent, `branch` is the method, seed and iteration.
    """

    stage: str
    suite: Suite
    inputs: dict[str, list[Path]]
    wildcards: dict[str, str]
    work: Path
    threads: int
    results: dict[str, list[ResultFile]] = field(default_factory=dict)
    devices: VllmDevices = VLLM_DEVICES
    branch: Branch = NO_BRANCH

    @property
    def model(self) -> ModelConfig:
        """The job's base model."""
        return self.suite.models[self.wildcards["model"]]

    @property
    def env(self) -> EnvConfig:
        """The job's environment."""
        return self.suite.envs[self.wildcards["env"]]

    @property
    def agent(self) -> AgentName:
        """The job's agent."""
        return agent_of(self.wildcards)

    @property
    def recipe(self) -> Recipe:
        """The job's method."""
        return self.suite.recipes[self.branch.method]

    @property
    def seed(self) -> int:
        """The job's seed."""
        return seed_of(self.stage, self.branch, self.wildcards)

    def file(self, name: str) -> Path:
        """The single input file called `name`; raises `UserError` if there is none, or more than one."""
        paths = self.inputs.get(name, [])
        if len(paths) != 1:
            raise UserError(f"stage `{self.stage}`: {len(paths)} inputs `{name}`, it takes one; give {name}=FILE.")
        return paths[0]

    def files(self, name: str) -> list[ResultFile]:
        """The input files called `name` with what they are results of; none if the job has no such input."""
        return self.results.get(name, [])

    def records(self, name: str, kind: type[R]) -> list[R]:
        """All records of the input file called `name`."""
        return jsonl.read(self.file(name), kind)
