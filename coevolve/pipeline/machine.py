"""Machines as the stages need them."""

import math
from pathlib import Path
from typing import Any

from coevolve.config import loading
from coevolve.config.machine import Machine, job_resources
from coevolve.errors import UserError, suggestion
from coevolve.pipeline.registry import ENDS, STAGES


def load_machine(name: str | Path) -> Machine:
    """The machine of a name or path. The key `products` applies to every product.

    Raises `UserError` naming file and key, also for an unknown stage, for several processes of a stage that runs in
    one, and where vLLM would not use all GPUs of a job that plays, or more than it has.
    """
    machine, path = loading.read_machine(name), loading.machine_file(name)
    groups = {"default", "products"}
    for unknown in machine.stages.keys() - STAGES.keys() - groups:
        raise UserError(f"{path}: key `stages.{unknown}`: no such stage{suggestion(unknown, STAGES) or '.'}")
    products = {stage: machine.stages.get("products", machine.stages["default"]) for stage in ENDS}
    machine = machine.model_copy(update={"stages": products | machine.stages})
    shared = machine.vllm.tensor_parallel_size
    for stage, declared in STAGES.items():
        resources = job_resources(machine, stage)
        # GRPO, which several processes share, has an engine in each.
        if declared.plays and not declared.launchable and resources.gpus not in (0, shared):
            problem = f"it is {shared}, but a job of `{stage}` requests {resources.gpus} GPUs"
            raise UserError(f"{path}: key `vllm.tensor_parallel_size`: {problem}; make them equal.")
        if resources.processes > 1 and not declared.launchable:
            key = f"stages.{stage if stage in machine.stages else 'default'}.processes"
            raise UserError(f"{path}: key `{key}`: `{stage}` runs in one process; remove the key.")
    return machine


def partition(machine: Machine, gpus: int) -> str | None:
    """The partition of a job with so many GPUs; None is the cluster's default."""
    return machine.partition if gpus else machine.cpu_partition or machine.partition


def snakemake_resources(machine: Machine, stage: str) -> dict[str, Any]:
    """The resources of a stage's rule under their names in Snakemake and its Slurm executor."""
    job = job_resources(machine, stage)
    memory_gb, minutes = (machine.most.memory_gb, machine.most.minutes) if machine.most else (math.inf, math.inf)
    resources: dict[str, Any] = {
        "mem_mb": lambda wildcards, attempt: int(1000 * min(job.memory_gb * attempt, memory_gb)),
        "runtime": lambda wildcards, attempt: min(job.minutes * attempt, minutes),
        "nodes": job.nodes,
        "gpus": job.gpus,
        "processes": job.processes,
        "gpu": job.gpus or None,
        "gpu_model": machine.gpu if job.gpus else None,
        "slurm_partition": partition(machine, job.gpus),
        "slurm_account": machine.account,
        "qos": machine.qos,
        "slurm_extra": machine.extra or None,
    }
    if job.nodes > 1:
        # With `mpi` the executor leaves srun to the job's command. Slurm counts the GPUs of all nodes together.
        resources |= {"mpi": "srun", "tasks": job.nodes, "tasks_per_gpu": 0, "gpu": job.gpus * job.nodes}
    return {name: value for name, value in resources.items() if value is not None}
