"""The DAG's vocabulary: its stages, and the branches of a method's history that they work on."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coevolve.config import machine as machine_config
from coevolve.config.machine import Machine
from coevolve.config.sections import Learns
from coevolve.errors import UserError

AgentName = Literal["target", "failure"]
POLICY = ("policy.json",)
#: Where downloads lie, for all suites.
MIRROR = "data/mirror"
SEED, ITERATION = r"base/seed\d+", r"(?!base/)\w+/seed\d+/iter[1-9]\d*"
PLAYED = f"base/untrained|{SEED}|{ITERATION}"
#: Where trajectories come from, by who acted.
SOURCES = {"expert": "experts", "target": "target", "failure": "failure"}
#: What reference log-probs are of: pairs, or the trajectories of two or all sources.
SCORED = ("pairs", "experts_target", "experts_failure", "target_failure", "experts_target_failure")


@dataclass(frozen=True)
class Stage:
    """A stage: the config sections it may read, the files it leaves, their folder, and the branches it works on.

    A stage that `learns` works on the iterations of the methods that learn so. A job reruns when the sections it reads,
    its code or its inputs change.
    """

    name: str
    reads: tuple[str, ...]
    files: tuple[str, ...]
    folder: str
    branches: str = ""
    learns: tuple[Learns, ...] = ()

    @property
    def module(self) -> str:
        """The module with the stage's `run`."""
        return f"coevolve.stages.{self.name}"

    @property
    def names(self) -> list[str]:
        """What a job of the stage is told beside its inputs, such as its environment."""
        return re.findall(r"\{(\w+)\}", self.folder)

    @property
    def enters(self) -> bool:
        """Whether the stage asks something of the environment's own package."""
        return "envs" in self.reads and "{env}" in self.folder


_BASELINES = ("evaluation", "selection", "steps", "ppo", "grpo")
_TREE = "{model}/{env}/{branch}/"
_TABLE = ("suite", "protocol", "methods", "seeds", "models", "envs", "iterations", "recipes", "prompt", "report")
_EPISODES = ("models", "envs", "protocol", "protocols", "rollout")
_SAMPLED = (*_EPISODES, "sampler")
_PAIRS = ("pairs.jsonl", "drops.jsonl", "summary.json")
STAGES = {
    stage.name: stage
    for stage in (
        Stage("download", ("sources",), ("{file}",), "{source}"),
        Stage("snapshot", ("models",), ("manifest.json",), "models/{model}"),
        Stage("gold", ("envs", "protocol", "protocols"), ("gold.jsonl",), "gold/{env}"),
        Stage("prepare", ("envs", "protocol", "protocols"), ("meta.json",), "prepared/{env}"),
        Stage(
            "data",
            ("envs", "protocol", "protocols", "prompt"),
            (
                "sft.jsonl",
                "experts.jsonl",
                "explore.jsonl",
                "evaluate.jsonl",
                "drops.jsonl",
                "instruction.txt",
                "example.json",
            ),
            "data/{env}",
        ),
        Stage("untrained", ("models",), POLICY, _TREE + "policy/target", "base/untrained"),
        Stage("pretrain", ("models",), POLICY, _TREE + "policy/target", "base/pretrained"),
        Stage("sft", ("models", "sft"), POLICY, _TREE + "policy/{agent}", SEED),
        Stage("shard", (*_SAMPLED, "evaluation"), ("episodes.jsonl",), _TREE + "parts/{whole}/{part}", PLAYED),
        Stage("rollout", _SAMPLED, ("episodes.jsonl",), _TREE + "rollout/{agent}", f"{SEED}|{ITERATION}"),
        Stage(
            "pairs",
            ("recipes", "pairing"),
            _PAIRS,
            _TREE + "pairs/{agent}",
            learns=("preference",),
        ),
        Stage(
            "steps",
            (*_SAMPLED, "recipes", "pairing", "steps"),
            (*_PAIRS, "explored.jsonl", "step_values.jsonl"),
            _TREE + "pairs/{agent}",
            learns=("steps",),
        ),
        Stage(
            "select",
            ("selection",),
            ("selected.jsonl", "drops.jsonl", "summary.json"),
            _TREE + "selected/{agent}",
            learns=("selected",),
        ),
        Stage("refit", ("models", "sft"), POLICY, _TREE + "policy/{agent}", learns=("selected",)),
        Stage("ppo", (*_EPISODES, "ppo"), (*POLICY, "episodes.jsonl"), _TREE + "policy/{agent}", learns=("ppo",)),
        Stage("grpo", (*_EPISODES, "grpo"), (*POLICY, "episodes.jsonl"), _TREE + "policy/{agent}", learns=("grpo",)),
        Stage(
            "reference",
            ("models",),
            ("scores.safetensors",),
            _TREE + "reference/{agent}/{of}",
            f"{SEED}|{ITERATION}",
        ),
        Stage("train", ("models", "dpo"), POLICY, _TREE + "policy/{agent}", learns=("preference", "steps")),
        Stage(
            "evaluate",
            (*_SAMPLED, "evaluation"),
            ("episodes.jsonl", "records.jsonl"),
            _TREE + "eval",
            PLAYED,
        ),
        Stage(
            "report",
            # What is reckoned of a job's cost depends on what the job is told to do.
            (*_TABLE, "ablations", "sft", "dpo", "rollout", "pairing", "sources", *_BASELINES),
            (
                "table1.md",
                "table1.tex",
                "table1.json",
                "figure3.png",
                "figure3.json",
                "differences.json",
                "figure2.json",
                "figure2.png",
                "figure2.svg",
                "analysis.json",
                "analysis.md",
                "pairs.json",
                "examples.md",
                "verdicts.json",
                "verdicts.md",
                "summary.md",
                "costs.md",
                "costs.json",
                "report.html",
            ),
            "paper",
        ),
        Stage(
            "ablation",
            (*_TABLE, "ablations"),
            ("table.md", "table.tex", "table.json", "summary.md"),
            "ablations/{ablation}",
        ),
    )
}


@dataclass(frozen=True)
class Branch:
    """Where in a method's history a result stands. `iteration` 0 is the base."""

    method: str
    seed: int
    iteration: int

    @classmethod
    def parse(cls, text: str) -> Branch:
        """The branch a path component such as `coevolve/seed0/iter2` names."""
        numbered = re.fullmatch(r"(\w+)/seed(\d+)(?:/iter(\d+))?", text)
        if numbered:
            return cls(numbered[1], int(numbered[2]), int(numbered[3] or 0))
        return cls(text, 0, 0)

    def __str__(self) -> str:
        if "/" in self.method:
            return self.method
        return f"{self.method}/seed{self.seed}" + (f"/iter{self.iteration}" if self.iteration else "")


def load_machine(path: str | Path) -> Machine:
    """The machine of a YAML file; raises `UserError` naming file and key, also for a stage that there is not."""
    machine = machine_config.load_machine(path)
    for name in machine.stages.keys() - STAGES.keys() - {"default"}:
        near = difflib.get_close_matches(name, STAGES, n=1)
        hint = f"; did you mean `{near[0]}`?" if near else "."
        raise UserError(f"{path}: key `stages.{name}`: no such stage{hint}")
    return machine


def agent_name(text: str) -> AgentName:
    """The agent a wildcard names; its constraint lets only these two pass."""
    return "failure" if text == "failure" else "target"


def constrained(pattern: str, constraints: Mapping[str, str]) -> str:
    """`{name}` as Snakemake's `{name,constraint}`."""
    return re.sub(r"\{(\w+)\}", lambda name: f"{{{name[1]},{constraints[name[1]]}}}", pattern)


def regex(pattern: str) -> str:
    """A Snakemake pattern `a/{name,constraint}` as a regular expression."""
    return re.sub(r"\{(\w+),([^}]*)\}", r"(?P<\1>\2)", pattern)
