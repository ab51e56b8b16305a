"""Sizes that follow from a model's or a machine's section: parameters, and the resources of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coevolve.config.machine import JobResources, Machine, Shards
    from coevolve.config.sections import ModelConfig


def parameter_count(model: ModelConfig) -> float:
    """The number of a model's parameters; 0 for an endpoint."""
    if (tiny := model.tiny) is None:
        return model.parameters or 0.0
    attention, mlp = 4 * tiny.hidden_size**2, 3 * tiny.hidden_size * tiny.intermediate_size
    return tiny.vocab_size * tiny.hidden_size + tiny.layers * (attention + mlp)


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
