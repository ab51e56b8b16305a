"""The settings of what becomes training data: pairs, steps, selected episodes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from coevolve.settings.section import Positive, Rate, Strict, UnitInterval

#: HPL's number of groups where it divides by number (as summaries of its paper print it).
GROUPS = 3


class FailureSelection(Strict):
    """Which of an agent's distinct failures of a task are paired: the first `per_task` in the order of `keep`.

    `hardest`: the highest rewards first; `easiest`: the lowest first; `nearest`: those nearest to `reward` first;
    `random`: in the order of their digests, which also orders equal rewards.
    """

    keep: Literal["hardest", "easiest", "random", "nearest"]
    per_task: Positive
    reward: UnitInterval | None = None

    @model_validator(mode="after")
    def _reward_of_nearest(self) -> FailureSelection:
        if (self.keep == "nearest") != (self.reward is not None):
            raise ValueError("`keep: nearest` needs `reward`, and only it takes one")
        return self


class PairingConfig(Strict):
    """Rules of pairing (sections 4.2 and 4.3 of the paper, and ETO's script).

    `hard_negative`: the minimum reward of a failure pair's chosen side (None: any). `drop_conflicts`: leave out an
    agent's pairs of whole trajectories whose rejected side is the chosen side of another of its pairs. `order`: the
    chosen side has the higher `reward`; by the `letter` of eq. 8 it is the kind's first agent's, ties and successes
    included. `failures`: of several failures of an agent and a task only some are paired.
    """

    expert_beaten: Literal["drop", "swap"]
    max_extra_turns: Annotated[int, Field(ge=0)] | None
    within: bool
    hard_negative: UnitInterval | None
    drop_conflicts: bool = False
    order: Literal["letter"] | None = None
    failures: FailureSelection | None = None


class PairWeights(Strict):
    """(lambda_DPO, lambda_SFT) of eq. 9 for one pair kind."""

    dpo: float = Field(ge=0.0)
    sft: float = Field(ge=0.0)


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
