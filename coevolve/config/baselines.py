"""The config sections of the baselines: Best-of-N, RFT, IPR, PPO and GRPO."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from coevolve.config.sections import Optimiser, Positive, Rate, Strict, UnitInterval

#: choice: two of WebShop's 200 episodes; in a small evaluation, none.
MAX_ENV_ERRORS = 0.01
#: HPL's number of groups where it divides by number (as summaries of its paper print it).
GROUPS = 3
ImportanceSampling = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] | None


class EvaluationConfig(Strict):
    """Each evaluation task is played `samples` times at `temperature` (0: greedy), and the best episode counts.

    More than one sample is Best-of-N judged by the environment's reward: an upper bound, not a policy's result.
    `max_env_errors`: an evaluation with a larger share of episodes that an error of the environment ended fails.
    """

    samples: Positive = 1
    temperature: Annotated[float, Field(ge=0.0)] = 0.0
    max_env_errors: UnitInterval = MAX_ENV_ERRORS

    @model_validator(mode="after")
    def _samples_differ(self) -> EvaluationConfig:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError("several `samples` need a `temperature` above 0: greedy episodes of a task are equal")
        return self


class SelectionConfig(Strict):
    """Rejection sampling: an agent's episodes with at least `min_reward`, at most `per_task` per task (None: all).

    `with_experts`: whether expert trajectories are trained on too. `experts`: those of fine-tuning, or also those of
    the explored tasks.
    """

    min_reward: UnitInterval
    per_task: Positive | None
    with_experts: bool
    experts: Literal["sft", "all"]


class StepsConfig(Strict):
    """Step pairs of IPR: at branch points of an expert trajectory, the agent's step against the expert's.

    A step's value is the mean reward of `samples` continuations at `temperature`. A step is preferred if its value is
    higher by more than `margin`. `every`: 1 compares at every expert step, 2 at every second. HPL also compares the
    turns of each of the `groups` of about equal length that a trajectory is divided into; with `curriculum` short ones
    of very different values are trained on first.
    """

    samples: Positive
    temperature: Rate
    margin: Annotated[float, Field(ge=0.0, lt=1.0)]
    every: Positive
    groups: Positive = GROUPS
    curriculum: bool = False


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
