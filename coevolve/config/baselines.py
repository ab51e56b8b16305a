"""The config sections of the baselines: Best-of-N, RFT, IPR, PPO and GRPO."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from coevolve.config.sections import Optimiser, Positive, Rate, Strict
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


class PpoConfig(Strict):
    """PPO. An iteration plays `rollouts` episodes, then takes `passes` over them, `batch_size` trajectories a step.

    `epochs` counts how often each task is played. `kl` weighs the per-token penalty against the start policy. AdamW, at
    a constant rate. The paper has a PPO row and no number for it.
    """

    epochs: Rate
    rollouts: Positive
    passes: Positive
    batch_size: Positive
    micro_batch: Positive
    learning_rate: Rate
    weight_decay: float = Field(ge=0.0)
    max_grad_norm: Rate
    clip: Rate
    value_clip: Rate
    value_weight: Annotated[float, Field(ge=0.0)]
    kl: Annotated[float, Field(ge=0.0)]
    discount: UnitInterval
    gae_lambda: UnitInterval

    @model_validator(mode="after")
    def _even(self) -> PpoConfig:
        if self.batch_size % self.micro_batch:
            raise ValueError("`batch_size` must be a multiple of `micro_batch`")
        return self


class GrpoConfig(Optimiser):
    """GRPO. A step plays `batch_size` episodes: `group` of each of `batch_size` / `group` tasks.

    `epochs` counts how often each task is visited, `group` episodes a visit. `beta` weighs the KL to the start policy.
    The paper has no GRPO row; its reviewers asked for one.
    """

    learning_rate: Rate
    group: Annotated[int, Field(ge=2)]
    beta: Annotated[float, Field(ge=0.0)]
    clip: Rate

    @model_validator(mode="after")
    def _whole_groups(self) -> GrpoConfig:
        if self.batch_size % self.group:
            raise ValueError("`batch_size` must be a multiple of `group`")
        return self
