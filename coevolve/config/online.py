"""The sections of the methods beside the paper's own: which preference objective, and how PPO and GRPO learn online."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from coevolve.config.sections import Optimiser, Positive, Rate, Strict
from coevolve.types import UnitInterval

ObjectiveName = Literal["dpo", "dpo_length", "dmpo", "simpo", "ipo", "kto"]
_PARAMETERS: dict[str, set[str]] = {"dmpo": {"discount"}, "simpo": {"margin"}, "kto": {"desirable", "undesirable"}}


class ObjectiveConfig(Strict):
    """The preference term of eq. 9: eq. 7 itself (`dpo`) or one of its rivals, with the parameters that one takes.

    `discount` is DMPO's gamma, `margin` SimPO's gamma, `desirable` and `undesirable` KTO's lambdas. What all of them
    call beta (IPO: tau) is `dpo.beta`.
    """

    name: ObjectiveName
    discount: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    margin: Annotated[float, Field(ge=0.0)] | None = None
    desirable: Rate | None = None
    undesirable: Rate | None = None

    @model_validator(mode="after")
    def _own_parameters(self) -> ObjectiveConfig:
        wanted = _PARAMETERS.get(self.name, set())
        if self.parameters.keys() != wanted:
            raise ValueError(f"objective `{self.name}` takes {_listed(wanted)} beside `name`, and nothing else")
        return self

    @property
    def parameters(self) -> dict[str, float]:
        """The objective's parameters beside beta."""
        return self.model_dump(exclude={"name"}, exclude_none=True)


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


def _listed(names: set[str]) -> str:
    return " and ".join(f"`{name}`" for name in sorted(names)) or "no parameter"
