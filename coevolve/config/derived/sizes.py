"""Sizes that follow from a model's or a machine's section: parameters, memory, and the resources of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coevolve.config.machine import JobResources, Machine, Shards
    from coevolve.config.sections import ModelConfig

#: Floating-point operations per weight and token of a training step, and of a forward pass.
TRAIN, FORWARD = 6.0, 2.0


def parameter_count(model: ModelConfig) -> float:
    """The number of a model's parameters; 0 for an endpoint."""
    if (tiny := model.tiny) is None:
        return model.parameters or 0.0
    attention, mlp = 4 * tiny.hidden_size**2, 3 * tiny.hidden_size * tiny.intermediate_size
    return tiny.vocab_size * tiny.hidden_size + tiny.layers * (attention + mlp)


def trained_parameters(model: ModelConfig, stage: str) -> float:
    """The number of parameters of a model that a job of `stage` writes: all, or those of adapters if it trains them.

    Adapters of other matrices than a Llama's count as those of its `q_proj`.
    """
    if model.lora is None or stage in WHOLE:
        return parameter_count(model)
    tiny, (hidden, layers) = model.tiny, llama_shape(parameter_count(model))
    if tiny:
        hidden, layers = tiny.hidden_size, tiny.layers
    inner = tiny.intermediate_size if tiny else 8 / 3 * hidden
    widths = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), 2 * hidden)  # inputs and outputs of each matrix
    widths |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), hidden + inner)
    targets = model.lora.target_modules
    names = widths if targets == "all-linear" else {target.rpartition(".")[2] for target in targets}
    return layers * model.lora.rank * sum(widths.get(name, 2 * hidden) for name in names)


def llama_shape(parameters: float) -> tuple[float, float]:
    """Hidden size and layers of a Llama-2 of as many parameters, which has 128 hidden dimensions per layer."""
    layers = (parameters / (12 * 128**2)) ** (1 / 3)
    return 128 * layers, layers


def parts(shards: Shards, stage: str, env: str) -> int | None:
    """The jobs that play one rollout or evaluation of an environment; None if none of any environment is divided."""
    number = {"rollout": shards.rollout, "evaluate": shards.evaluate}.get(stage, 1)
    counts = number if isinstance(number, dict) else {env: number}
    return counts.get(env, 1) if max(counts.values(), default=1) > 1 else None


#: Stages that write all weights of a model with adapters, too.
WHOLE = ("snapshot", "convert", "untrained", "pretrain")
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
    `launch`: the name of the launch file. `shape`: hidden size and layers (None: `llama_shape`). `trained`: the share
    of the parameters that is trained, as adapters.
    """
    hidden, layers = shape or llama_shape(parameters)
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
