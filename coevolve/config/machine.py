"""Machines: the resources that the jobs of each stage request. No result depends on them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from coevolve.policies.settings import VLLM_DEVICES, VllmDevices
from coevolve.settings.section import Positive, Rate, Strict

#: A name in Slurm, which YAML may read as a number.
SlurmName = Annotated[str, Field(coerce_numbers_to_str=True)]
CostConstant = Literal["training", "reading", "writing", "vllm_reading", "vllm_writing", "startup_seconds"]


def parts(shards: Shards, stage: str, env: str) -> int | None:
    """The jobs that play one rollout or evaluation of an environment; None if none of any environment is divided."""
    number = {"rollout": shards.rollout, "evaluate": shards.evaluate}.get(stage, 1)
    counts = number if isinstance(number, dict) else {env: number}
    return counts.get(env, 1) if max(counts.values(), default=1) > 1 else None


def job_resources(machine: Machine, stage: str) -> JobResources:
    """The resources of a job of `stage`. A job that only concatenates shards runs locally, without GPUs."""
    resources = machine.stages.get(stage, machine.stages["default"])
    if parts(machine.shards, stage, "") is None:
        return resources
    return resources.model_copy(update={"local": True, "gpus": 0, "cpus": 1, "processes": 1})


class JobResources(Strict):
    """The resources that one job requests. Attempt n requests n times this memory and time.

    `local`: the job runs where Snakemake runs. `processes`: on all nodes together; accelerate launches more than one.
    `gpus`: on each node.
    """

    local: bool = False
    gpus: Annotated[int, Field(ge=0)] = 0
    nodes: Positive = 1
    processes: Positive = 1
    cpus: Positive
    memory_gb: Rate
    minutes: Positive


class ResourceLimits(Strict):
    """The most that any attempt requests: a node's memory, and the partition's time limit."""

    memory_gb: Rate
    minutes: Positive


class Shards(Strict):
    """The number of jobs that one rollout, and one evaluation, is divided into: of all environments, or of each by its
    name, where those without an entry are not divided.
    """

    rollout: Positive | dict[str, Positive]
    evaluate: Positive | dict[str, Positive]


class CostConstants(Strict):
    """The constants of `coevolve plan`'s cost model (`coevolve.report.costs`).

    `flops`: peak operations per second of one GPU, or of one process on a machine without GPUs. `training`, `reading`
    and `writing`: factors on `flops` of training, prefill and decode, fitted or chosen; above 1 where large matrices
    run faster than the benchmark that gave `flops`. `reading` and `writing` are those of the built-in engine,
    `vllm_reading` and `vllm_writing` vLLM's (None: the same). `startup_seconds`: the time of a job before its first
    step. `turn_scale` multiplies the environments' own `expected.turn_seconds`. `slow` and `fast`: constants at the
    ends of a range, which give hours as one.
    """

    flops: Rate
    training: Rate
    reading: Rate
    writing: Rate
    vllm_reading: Rate | None = None
    vllm_writing: Rate | None = None
    startup_seconds: Rate
    turn_scale: Rate = 1.0
    slow: dict[CostConstant, Rate] = Field(default={})
    fast: dict[CostConstant, Rate] = Field(default={})


class Machine(Strict):
    """A cluster or a computer: `configs/machines/<name>.yaml`.

    `gpu`: the GPU type, by its name in Slurm. `extra`: additional options for sbatch. `launch`: accelerate's config for
    stages with several processes. `fork_jobs`: jobs with a model are forked from one process that has imported torch
    (`coevolve.pipeline.job_server`), for machines where all jobs run on the computer that Snakemake runs on.
    `partition`: several, as a list, are those of which Slurm chooses one.
    `prune_weights`: a policy's weights are deleted after their last use (`coevolve.watch.pruning`). `cpu_partition`:
    of jobs without a GPU (null: `partition`). `containers`: every stage runs in its image.
    """

    label: str
    gpu: SlurmName | None
    gpus_per_node: Annotated[int, Field(ge=0)]
    most: ResourceLimits | None
    partition: SlurmName | None
    cpu_partition: SlurmName | None = None
    account: SlurmName | None
    qos: SlurmName | None
    extra: str
    shards: Shards
    launch: str | None
    fork_jobs: bool = False
    prune_weights: bool = False
    containers: bool = False
    vllm: VllmDevices = VLLM_DEVICES
    stages: dict[str, JobResources]
    costs: CostConstants

    @field_validator("partition", mode="before")
    @classmethod
    def _joined(cls, names: Any) -> Any:
        """A list of names as sbatch takes it."""
        return ",".join(map(str, names)) if isinstance(names, list) else names

    @model_validator(mode="before")
    @classmethod
    def _fill_from_default(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Give every stage the keys of `default` that it does not set."""
        stages = raw.get("stages") or {}
        if not (isinstance(stages, dict) and all(isinstance(resources, dict) for resources in stages.values())):
            raise ValueError("stages: each holds keys such as `cpus`")
        if "default" not in stages:
            raise ValueError("stages: `default` is missing")
        return {**raw, "stages": {name: {**stages["default"], **resources} for name, resources in stages.items()}}

    @model_validator(mode="after")
    def _stages_fit(self) -> Machine:
        for name, job in self.stages.items():
            if self.most and (job.memory_gb > self.most.memory_gb or job.minutes > self.most.minutes):
                raise ValueError(f"stages: `{name}` requests more than `most` allows")
            if job.gpus > self.gpus_per_node:
                raise ValueError(f"stages: `{name}` requests {job.gpus} GPUs of a node that has {self.gpus_per_node}")
            if job.processes % job.nodes:
                raise ValueError(f"stages: `{name}` has {job.processes} processes, not a multiple of {job.nodes} nodes")
            if 0 < job.gpus * job.nodes < job.processes:
                raise ValueError(f"stages: `{name}` has {job.processes} processes for {job.gpus * job.nodes} GPUs")
            if job.processes > 1 and not self.launch:
                raise ValueError(f"stages: `{name}` has {job.processes} processes; set `launch`")
        return self
