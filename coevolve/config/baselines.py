"""The sections of the methods that sample: RFT, Best-of-N and IPR."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from coevolve.config.sections import Positive, Rate, Strict
from coevolve.types import UnitInterval


class EvaluationConfig(Strict):
    """Each evaluation task is played `samples` times at `temperature` (0: greedily), and the best episode counts.

    More than one is Best-of-N with the environment's own reward as the judge: an upper bound, not a policy's result.
    """

    samples: Positive = 1
    temperature: Annotated[float, Field(ge=0.0)] = 0.0


class SelectionConfig(Strict):
    """Rejection sampling: an agent's own episodes of at least `min_reward`, at most `per_task` (None: all) of a task.

    `with_experts`: whether the experts are learned from beside them.
    """

    min_reward: UnitInterval
    per_task: Positive | None
    with_experts: bool


class StepsConfig(Strict):
    """Step-level process refinement: where the agent leaves an expert's way, and what a step is worth.

    A step is worth the mean reward of `samples` continuations at `temperature`. Of two steps one is better if it is
    worth more by over `margin`. `every`: 1 looks at every step of an expert, 2 at every second.
    """

    samples: Positive
    temperature: Rate
    margin: Annotated[float, Field(ge=0.0, lt=1.0)]
    every: Positive
