"""The settings of what plays: types, endpoints, engines; free of torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from coevolve.settings.section import Positive, Rate, Strict

#: A floating-point type of forward and backward passes. None: bfloat16 on a GPU, float32 on a CPU.
ComputeDtype = Literal["float32", "bfloat16"] | None


class EndpointConfig(Strict):
    """A model behind an OpenAI-compatible endpoint, evaluated only. Environment variables hold its address and key.

    `seeds`: whether the endpoint takes a `seed`. `length`: its name for the limit of tokens per completion. `omit`:
    parameters that it refuses, left out of requests. The other keys change no completion and are excluded from digests,
    so editing them repeats no request: `concurrency` requests at once, each given up after `timeout_seconds`
    without a byte and retried up to `retries` times; prices are per million tokens (0: not estimated).
    """

    model: Annotated[str, Field(min_length=1)]
    seeds: bool
    length: Literal["max_tokens", "max_completion_tokens"]
    omit: list[Literal["temperature", "top_p"]] | None = None
    concurrency: Positive = Field(exclude=True)
    timeout_seconds: Rate = Field(exclude=True)
    retries: Annotated[int, Field(ge=0)] = Field(exclude=True)
    price_in: Annotated[float, Field(ge=0.0)] = Field(exclude=True)
    price_out: Annotated[float, Field(ge=0.0)] = Field(exclude=True)


class SamplerConfig(Strict):
    """The engine that samples episodes: `transformers` (built in) or `vllm` (in a separate image).

    `dtype`: the type of the weights and activations that play; in PPO and GRPO,
    which play with the built-in engine, too. A machine's section `vllm` has the keys of its devices.
    """

    engine: Literal["transformers", "vllm"]
    dtype: ComputeDtype = None


class VllmDevices(Strict):
    """vLLM's use of a machine's GPUs, under vLLM's names; no result depends on it beyond rounding.

    `gpu_memory_utilization`: the share of each GPU's memory for weights and KV cache. `max_num_seqs`: the largest
    batch; further conversations wait. `tensor_parallel_size`: the GPUs that share the weights, all GPUs of a job.
    """

    gpu_memory_utilization: Annotated[float, Field(gt=0.0, le=1.0)] = 0.9
    max_num_seqs: Positive = 256
    tensor_parallel_size: Positive = 1


#: vLLM's devices where a machine sets none of their keys.
VLLM_DEVICES = VllmDevices()
