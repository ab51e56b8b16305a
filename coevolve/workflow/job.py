"""A job: one execution of a stage, with its config, inputs and seed."""

from __future__ import annotations

import functools
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from coevolve import seeds
from coevolve.chat.prompts import demonstration
from coevolve.config.environments import EnvConfig
from coevolve.config.sections import ModelConfig, Recipe
from coevolve.config.suite import Suite
from coevolve.envs.base import Setup
from coevolve.errors import UserError
from coevolve.storage import files, jsonl
from coevolve.types import Message, Record, Trajectory
from coevolve.workflow.branch import AgentName, Branch, agent_of

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Job:
    """One execution of a stage.

    `suite` holds only the sections that the stage declared. `inputs` are files by name. `work` is a folder for
    checkpoints and journals: it survives a killed job, and no job with another fingerprint uses it. `wildcards` name
    the model, environment, branch and agent.
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

    @functools.cached_property
    def setup(self) -> Setup:
        """What the environment's package needs: its config section, the protocol and the prepared folder.

        The same object at every call. Its `chance` is drawn once: a job that was killed reads it from its work folder.
        """
        prepared = self.file("prepared").parent if "prepared" in self.inputs else None
        drawn = self.work / "chance"
        if not drawn.exists():
            files.write_bytes(drawn, str(secrets.randbits(63)).encode())
        of_env = self.env, f"envs.{self.wildcards['env']}", self.suite.protocol, self.suite.quirks
        return Setup(*of_env, prepared, int(drawn.read_text()))

    @property
    def branch(self) -> Branch:
        """The job's method, seed and iteration."""
        return Branch.parse(self.wildcards["branch"])

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
        """The job's seed, derived from the suite's seed and the job's names; a shard has that of the undivided job."""
        whole = self.wildcards.get("whole", "")
        stage = {"": self.stage, "eval": "evaluate"}.get(whole, "rollout")
        names = (stage, self.wildcards.get("env", ""), str(self.branch), self.agent)
        return seeds.derive(self.branch.seed, *names)

    def file(self, name: str) -> Path:
        """The single input file called `name`; raises `UserError` if there is none, or more than one."""
        paths = self.inputs.get(name, [])
        if len(paths) != 1:
            raise UserError(f"stage `{self.stage}`: {len(paths)} inputs `{name}`, it takes one; give {name}=FILE.")
        return paths[0]

    def policy(self, name: str) -> Path:
        """Folder of the input policy called `name`."""
        return self.file(name).parent

    def records(self, name: str, kind: type[R]) -> list[R]:
        """All records of the input file called `name`."""
        return jsonl.read(self.file(name), kind)

    def few_shot_example(self, name: str) -> tuple[Message, ...]:
        """The episode in the input called `name` as messages; empty if the job has no such input."""
        return demonstration(self.records(name, Trajectory)[0]) if name in self.inputs else ()
