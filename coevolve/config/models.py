"""A base model, its size, and the memory of its trainings."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, model_validator

from coevolve.assets.settings import GgufFile
from coevolve.policies.settings import ComputeDtype, EndpointConfig
from coevolve.settings.section import Rate, Strict
from coevolve.train.settings import LoraConfig, PretrainConfig, TinyArchitecture

#: Floating-point operations per weight and token of a training step, and of a forward pass.
TRAIN, FORWARD = 6.0, 2.0
#: Stages that write all weights of a model with adapters, too.
WHOLE = ("snapshot", "convert", "untrained", "pretrain")
#: Bytes per trained parameter of float32 weights, gradients and AdamW's moments, and of the flat copy that DeepSpeed
#: makes, by launch file: on every device, and shared by the devices.
STATES = {"ddp": (16, 0), "zero2": (4, 16), "zero3": (0, 20), "fsdp": (0, 16)}
#: Gathered weights and buckets of DeepSpeed: computed for 7B; 4.7 GB were measured at 1.1B (benchmarks/measured/h100).
DEEPSPEED_BUFFERS = 8e9
#: Bytes per token and hidden dimension of the layer that is recomputed, with its gradients. Measured at 7B: 84 to 90.
LAYER_BYTES = 90


class ModelConfig(Strict):
    """A base model: `tiny` (built by the kit), `hub` (at the commit `revision`), `gguf` (a file, dequantised once),
    `path` (a folder in the format of transformers) or `endpoint`. `context`: the longest sequence in tokens.
    `training_dtype`: in which type trainings and reference log-probs are computed; weights and optimiser state are
    float32 in either. `chat_template`: the text of a template instead of the checkpoint's own.
    """

    label: str
    context: Annotated[int, Field(gt=0, le=10**8)]
    tiny: TinyArchitecture | None = None
    pretrain: PretrainConfig | None = None
    hub: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")] | None = None
    gguf: GgufFile | None = None
    path: str | None = None
    endpoint: EndpointConfig | None = None
    revision: str = ""
    parameters: Rate | None = None
    lora: LoraConfig | None = None
    training_dtype: ComputeDtype = None
    chat_template: str | None = None

    @model_validator(mode="after")
    def _template_of_a_checkpoint(self) -> ModelConfig:
        if self.chat_template and not (self.hub or self.gguf or self.path):
            raise ValueError("`chat_template` is for models of `hub`, `gguf` or `path` alone")
        return self

    @model_validator(mode="after")
    def _single_source(self) -> ModelConfig:
        sources = (self.tiny, self.hub, self.gguf, self.path, self.endpoint)
        if sum(source is not None for source in sources) != 1 or (self.tiny is None) != (self.pretrain is None):
            raise ValueError(
                "give either `hub` and `revision`, or `gguf`, or `path`, or `endpoint`, or both `tiny` and `pretrain`"
            )
        if self.hub and not re.fullmatch("[0-9a-f]{40}", self.revision):
            raise ValueError("`revision`: name the commit of the hub's model by its 40 hex digits")
        if (self.tiny is None and self.endpoint is None) != (self.parameters is not None):
            raise ValueError(
                "set `parameters` for a model of `hub`, `gguf` or `path`, and only there; a tiny model's are counted"
            )
        return self


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
