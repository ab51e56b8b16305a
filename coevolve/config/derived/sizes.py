"""Sizes that follow from a model's or a machine's section: parameters, memory, and the resources of a job."""

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


#: Bytes per trained parameter of float32 weights, gradients and AdamW's moments, and of the flat copy that DeepSpeed
#: makes, by launch file: on every device, and shared by the devices.
STATES = {"ddp": (16, 0), "zero2": (4, 16), "zero3": (0, 20), "fsdp": (0, 16)}
#: Gathered weights and buckets of DeepSpeed: computed for 7B; 4.7 GB were measured at 1.1B (benchmarks/measured/h100).
DEEPSPEED_BUFFERS = 8e9
#: Bytes per token and hidden dimension of the layer that is recomputed, with its gradients. Measured at 7B: 84 to 90.
LAYER_BYTES = 90


def training_memory(
    parameters: float,
    tokens: float,
    launch: str = "ddp",
    devices: int = 1,
    *,
    shape: tuple[float, float] | None = None,
    trained: float = 1.0,
) -> float:
    """Bytes on each of `devices` in a training that recomputes activations, with one micro-batch of `tokens` per step.

    The residual stream of every layer is kept; it is float32 under autocast too. One layer is recomputed at a time.
    `launch`: the name of the launch file. `shape`: hidden size and layers (None: of a Llama-2 of as many parameters,
    which has 128 hidden dimensions per layer). `trained`: the share of the parameters that is trained, as adapters.
    """
    layers = (parameters / (12 * 128**2)) ** (1 / 3)
    hidden, layers = shape or (128 * layers, layers)
    whole, shared = STATES[launch]
    states = parameters * (whole + shared / devices)
    frozen = 12 * (1 - trained) * parameters / (devices if shared > whole else 1)
    residual, layer = 4 * layers * hidden * tokens, LAYER_BYTES * hidden * tokens
    if launch == "ddp":  # gradients are allocated while the residual stream is freed
        residual = max(0.0, residual - 4 * trained * parameters)
    return states - frozen + residual + layer + DEEPSPEED_BUFFERS * launch.startswith("zero")


def job_resources(machine: Machine, stage: str) -> JobResources:
    """The resources of a job of `stage`. A job that only concatenates shards runs locally, without GPUs."""
    resources = machine.stages.get(stage, machine.stages["default"])
    if parts(machine.shards, stage, "") is None:
        return resources
    return resources.model_copy(update={"local": True, "gpus": 0, "cpus": 1, "processes": 1})
