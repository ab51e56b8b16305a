"""What plays a job's episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coevolve.config.suite import Suite


def engine(suite: Suite, model: str) -> str:
    """The engine of a model's policies: the suite's sampler, or `endpoint`."""
    return "endpoint" if suite.models[model].endpoint else suite.sampler.engine


def explorer_engine(suite: Suite, model: str) -> str:
    """The engine that explores for new tasks: the policy's own, `endpoint`, or `scripted`."""
    explorer = suite.task_evolution.explorer
    return engine(suite, model) if explorer == "policy" else explorer
