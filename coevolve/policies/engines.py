"""The engines that play, each a module that is imported by name: a job's code digest covers its own engine alone."""

import importlib
from dataclasses import dataclass
from pathlib import Path

from coevolve.config.machine import VLLM_DEVICES, VllmDevices
from coevolve.config.names import LongPrompt
from coevolve.config.sections import EndpointConfig
from coevolve.policies.base import Policy

_MODULES = {"transformers": "hf", "vllm": "vllm", "endpoint": "openai", "scripted": "scripted"}


@dataclass(frozen=True)
class EngineSettings:
    """The settings of a policy that plays.

    `context` is in tokens. `workers`: the environments that there can be. `usage`: the journal of an
    endpoint's token counts. `dtype`: of weights and activations (None: bfloat16 on a GPU, float32 on a CPU).
    """

    context: int
    long_prompt: LongPrompt
    workers: int
    usage: Path
    dtype: str | None = None
    endpoint: EndpointConfig | None = None
    devices: VllmDevices = VLLM_DEVICES


def engine_module(engine: str) -> str:
    """The name of an engine's module."""
    return f"coevolve.policies.{_MODULES[engine]}"


def load_player(engine: str, folder: Path | None, settings: EngineSettings) -> tuple[Policy, int]:
    """The policy in a directory, loaded by the engine's `player`, and how many environments it keeps busy."""
    loaded: tuple[Policy, int] = importlib.import_module(engine_module(engine)).player(folder, settings)
    return loaded
