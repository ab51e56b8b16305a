"""How a suite's episodes are played: by which rules, at which temperature, by which engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coevolve.config.sections import Quirks
    from coevolve.config.suite import Suite


def quirks(suite: Suite) -> Quirks:
    """The switches of the suite's protocol."""
    return suite.protocols[suite.protocol]


def exploration_temperature(suite: Suite) -> float:
    """The temperature of exploration, by default the protocol's; 0 is greedy."""
    temperature = suite.rollout.temperature
    return quirks(suite).exploration_temperature if temperature is None else temperature


def engine(suite: Suite, model: str) -> str:
    """The engine of a model's policies: the suite's sampler, or `endpoint`."""
    return "endpoint" if suite.models[model].endpoint else suite.sampler.engine


def grpo_engine(suite: Suite, _: str) -> str:
    """The engine that plays in GRPO."""
    return suite.grpo.engine or "transformers"
