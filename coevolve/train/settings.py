"""The settings of trainings; free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from coevolve.settings.section import Positive, Rate, Strict, UnitInterval

#: Above this many parameters a training recomputes activations: slower, less memory, the same numbers.
RECOMPUTE_ABOVE = 1_000_000_000


#: The parameters of the objectives of `dpo.objective` that have some.
OBJECTIVE_PARAMETERS: dict[str, tuple[str, ...]] = {
    "dmpo": ("discount",),
    "simpo": ("margin",),
    "kto": ("desirable", "undesirable"),
}
ImportanceSampling = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] | None
ObjectiveName = Literal["dpo", "dpo_length", "dmpo", "simpo", "ipo", "kto"]


class Optimiser(Strict):
    """AdamW and its schedule.

    `batch_size`: sequences or pairs per gradient step, over all devices. `micro_batch`: sequences or pairs per forward
    pass of a device. `warmup`: the share of the steps in which the rate rises. `save_steps`: steps between checkpoints.
    """

    epochs: Rate
    batch_size: Positive
    micro_batch: Positive
    warmup: UnitInterval
    schedule: Literal["cosine", "linear", "constant"]
    weight_decay: float = Field(ge=0.0)
    max_grad_norm: float = Field(gt=0.0)
    save_steps: Positive

    @model_validator(mode="after")
    def _whole_micro_batches(self) -> Self:
        if self.batch_size % min(self.micro_batch, self.batch_size):
            raise ValueError("`batch_size` must be a multiple of `micro_batch`")
        return self


class Supervised(Optimiser):
    """Training on single sequences. `layout` of a micro-batch: `padded`, or packed without padding (`flat`).

    `nll`: the loss of a step is the mean over its action tokens (None), or the mean over its
    sequences of the `sum` over each one's action tokens.
    """

    layout: Literal["padded", "flat"]
    learning_rate: Rate
    nll: Literal["sum"] | None = None


class SftConfig(Supervised):
    """Eq. 3 to 5."""


class ObjectiveConfig(Strict):
    """The preference term of eq. 9: eq. 7 (`dpo`) or an alternative objective, with the parameters that it takes.

    `discount` is DMPO's gamma, `margin` SimPO's gamma, `desirable` and `undesirable` are KTO's lambdas. The beta of all
    objectives (IPO: tau) is `dpo.beta`.
    """

    name: ObjectiveName
    discount: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    margin: Annotated[float, Field(ge=0.0)] | None = None
    desirable: Rate | None = None
    undesirable: Rate | None = None

    @model_validator(mode="after")
    def _parameters_match(self) -> ObjectiveConfig:
        wanted = OBJECTIVE_PARAMETERS.get(self.name, ())
        given = self.model_dump(exclude={"name"}, exclude_none=True)
        named = " and ".join(f"`{name}`" for name in wanted) or "nothing"
        if missing := [name for name in wanted if name not in given]:
            raise ValueError(f"objective `{self.name}` needs {named} beside `name`; `{missing[0]}` is missing")
        if surplus := [name for name in given if name not in wanted]:
            raise ValueError(f"objective `{self.name}` takes {named} beside `name`; remove `{surplus[0]}`")
        return self


class DpoConfig(Optimiser):
    """Eq. 7 and 9. `learning_rate` and `beta`: entry i for iteration i, the last entry for all later iterations; or one
    number for all iterations.

    `layout` of a micro-batch: `padded`, packed without padding (`flat`), or packed with the common prefix of a pair's
    two sides stored once (`shared`). The three give the same losses up to rounding. `steps_like`: a method; this one's
    target takes as many gradient steps as both agents of that one.
    """

    layout: Literal["padded", "flat", "shared"]

    learning_rate: Annotated[list[Rate], Field(min_length=1)]
    beta: Annotated[list[Rate], Field(min_length=1)]
    reference: Literal["previous", "base"]
    nll: Literal["mean", "sum"]
    objective: ObjectiveConfig
    precompute_reference: bool
    steps_like: str | None = None

    @field_validator("learning_rate", "beta", mode="before")
    @classmethod
    def _number_for_all_iterations(cls, value: Any) -> Any:
        return value if isinstance(value, list) else [value]


class TinyArchitecture(Strict):
    """A randomly initialised Llama, with a byte-level BPE tokenizer trained on the expert text.

    `words`: texts, such as the fixed parts of a page, that BPE may merge to one token each; it merges nothing else
    across the borders of words.
    """

    vocab_size: Positive
    words: list[Annotated[str, Field(min_length=1)]] = Field(default=[])
    hidden_size: Positive
    layers: Positive
    heads: Positive
    intermediate_size: Positive

    @model_validator(mode="after")
    def _heads_divide(self) -> TinyArchitecture:
        if self.hidden_size % self.heads:
            raise ValueError(f"`hidden_size` {self.hidden_size} is not a multiple of `heads` {self.heads}")
        if (width := self.hidden_size // self.heads) % 2:
            raise ValueError(f"`hidden_size` / `heads` is {width}; rotary positions need an even number")
        return self


class PretrainConfig(Supervised):
    """Language modelling on all tokens of `corpus`; only for tiny models, which have no downloaded checkpoint.

    `per_seed`: each seed of the suite has random weights and a pre-training of its own, in place of one for all. Left
    out of digests if it is not set.
    """

    per_seed: bool = False


class LoraConfig(Strict):
    """Low-rank adapters instead of full fine-tuning; policies are kept as their adapters."""

    rank: Positive
    alpha: Positive
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)]
    target_modules: Annotated[list[str], Field(min_length=1)] | Literal["all-linear"]


class GradientsConfig(Strict):
    """Gradients by pair kind before and after each preference training (stage `gradients`).

    `pairs`: of each kind at most so many pairs are measured, evenly spaced. None: nothing is measured.
    """

    pairs: Positive | None


class PpoConfig(Strict):
    """PPO. An iteration plays `rollouts` episodes, then makes `passes` over them, `batch_size` trajectories per step.

    `epochs`: how often each task is played. `kl`: weight of the per-token KL penalty against the start policy. AdamW
    with a constant learning rate. The paper has a PPO row and gives no hyper-parameters for it.
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


class GrpoConfig(Optimiser):
    """GRPO. A step plays `batch_size` episodes: `group` episodes on each of `batch_size` / `group` tasks.

    `epochs`: how often each task is visited, with `group` episodes per visit. `beta`: weight of the KL divergence from
    the method's start policy; with adapters, which are new in each round of a pool, from the round's start policy.
    `importance_sampling`: how TRL corrects for sampling in another type than training (None: not). `normalize`: by
    the action tokens of each task's `group`, so that all tasks weigh the same (None: by those of the step). The
    paper has no GRPO row; its reviewers requested one.
    """

    learning_rate: Rate
    group: Annotated[int, Field(ge=2)]
    beta: Annotated[float, Field(ge=0.0)]
    clip: Rate
    importance_sampling: ImportanceSampling = None
    normalize: Literal["group"] | None = None

    @model_validator(mode="after")
    def _whole_groups(self) -> GrpoConfig:
        if self.batch_size % self.group:
            raise ValueError("`batch_size` must be a multiple of `group`")
        return self


def per_iteration(values: Sequence[float], iteration: int) -> float:
    """Entry `iteration` (from 1) of a schedule whose last entry holds for all later iterations."""
    return values[min(iteration, len(values)) - 1]


def objective_parameters(objective: ObjectiveConfig) -> dict[str, float]:
    """The objective's parameters except beta."""
    return objective.model_dump(exclude={"name"}, exclude_none=True)


def is_reference_free(objective: ObjectiveConfig) -> bool:
    """Whether the objective is computed without a reference policy."""
    return objective.name == "simpo"
