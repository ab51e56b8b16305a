"""Machines: what each stage asks of the place it runs at. Nothing here decides a number of a result."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from coevolve.config.sections import Positive, Rate, Strict
from coevolve.config.suite import named_file, validated
from coevolve.config.yaml_files import read_yaml


class Needs(Strict):
    """What one job asks for. Memory and time grow with every attempt: twice as much for the second.

    `local`: runs where Snakemake itself runs. `processes` is that of all nodes together; more than one is launched with
    accelerate. `gpus` counts those of one node.
    """

    local: bool = False
    gpus: Annotated[int, Field(ge=0)] = 0
    nodes: Positive = 1
    processes: Positive = 1
    cpus: Positive
    memory_gb: Rate
    minutes: Positive


class Most(Strict):
    """What no attempt asks to exceed: a node's memory, and the longest time that the partition allows."""

    memory_gb: Rate
    minutes: Positive


class Shards(Strict):
    """Jobs among which one rollout, and one evaluation, is divided."""

    rollout: Positive
    evaluate: Positive


class Costs(Strict):
    """The constants of `coevolve plan`'s cost model (`coevolve.workflow.costs`).

    `flops`: of one GPU (or of one process, where there is none) per second. The three utilisations are shares of it
    that training, reading a prompt and writing tokens reach. `startup_seconds`: of a job before its first step.
    `turn_scale` multiplies the environments' own `expected.turn_seconds`.
    """

    flops: Rate
    training: Rate
    reading: Rate
    writing: Rate
    startup_seconds: Rate
    turn_scale: Rate = 1.0


class Machine(Strict):
    """A cluster or a computer: `configs/machines/<name>.yaml`.

    `gpu`: type as Slurm names it. `extra`: more options for sbatch. `launch`: accelerate's config for stages of several
    processes.
    """

    label: str
    gpu: str | None
    gpus_per_node: Annotated[int, Field(ge=0)]
    most: Most | None
    partition: str | None
    account: str | None
    qos: str | None
    extra: str
    shards: Shards
    launch: str | None
    stages: dict[str, Needs]
    costs: Costs

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Every stage has what `default` has, but for what it says itself."""
        stages = raw.get("stages") or {}
        if not all(isinstance(needs, dict) for needs in stages.values()):
            raise ValueError("stages: each holds keys such as `cpus`")
        if "default" not in stages:
            raise ValueError("stages: `default` is missing")
        return {**raw, "stages": {name: {**stages["default"], **needs} for name, needs in stages.items()}}

    @model_validator(mode="after")
    def _fits(self) -> Machine:
        for name, needs in self.stages.items():
            if self.most and (needs.memory_gb > self.most.memory_gb or needs.minutes > self.most.minutes):
                raise ValueError(f"stages: `{name}` asks for more than `most` allows")
            if needs.gpus > self.gpus_per_node:
                raise ValueError(f"stages: `{name}` asks for {needs.gpus} GPUs of a node that has {self.gpus_per_node}")
            if needs.processes > 1 and not self.launch:
                raise ValueError(f"stages: `{name}` has {needs.processes} processes; say `launch`")
        return self

    def needs(self, stage: str) -> Needs:
        """What a job of `stage` asks for; one that puts shards together asks for nothing of a queue."""
        own = self.stages.get(stage, self.stages["default"])
        divided = self.shards.model_dump().get(stage, 1) > 1
        return own.model_copy(update={"local": True, "gpus": 0, "cpus": 1, "processes": 1}) if divided else own

    def resources(self, stage: str) -> dict[str, Any]:
        """The resources of a stage's rule as Snakemake and its Slurm executor name them."""
        needs = self.needs(stage)
        memory_gb, minutes = (self.most.memory_gb, self.most.minutes) if self.most else (math.inf, math.inf)
        asked: dict[str, Any] = {
            "mem_mb": lambda wildcards, attempt: int(1000 * min(needs.memory_gb * attempt, memory_gb)),
            "runtime": lambda wildcards, attempt: min(needs.minutes * attempt, minutes),
            "nodes": needs.nodes,
            "processes": needs.processes,
            "gpu": needs.gpus or None,
            "gpu_model": self.gpu if needs.gpus else None,
            "slurm_partition": self.partition,
            "slurm_account": self.account,
            "qos": self.qos,
            "slurm_extra": self.extra or None,
        }
        if needs.nodes > 1:
            # The executor then leaves srun to the command, and Slurm's GPUs are counted over all nodes.
            asked |= {"mpi": "srun", "tasks": needs.nodes, "tasks_per_gpu": 0, "gpu": needs.gpus * needs.nodes}
        return {name: value for name, value in asked.items() if value is not None}


def load_machine(name: str | Path) -> Machine:
    """The machine of a name or path; raises `UserError` naming file and key."""
    path = machine_file(name)
    return validated(Machine, path, read_yaml(path))


def machine_file(name: str | Path) -> Path:
    """Path of a machine given by name (`h100` is `configs/machines/h100.yaml`) or by path; raises as `named_file`."""
    return named_file("machine", name, Path("configs/machines"))
