"""The sections of the methods that learn online: PPO and GRPO."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from coevolve.config.sections import Optimiser, Positive, Rate, Strict
from coevolve.types import UnitInterval


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
