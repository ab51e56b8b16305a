"""Preference pairs, what was not used and why, and the counts of a pairing."""

from enum import StrEnum
from typing import Literal, Self

from pydantic import AliasChoices, Field, model_validator

from coevolve.records.base import SCHEMA_VERSION, Record, is_none
from coevolve.records.episodes import Message, Reward


class PairKind(StrEnum):
    """What a preference pair compares."""

    EXPERT_TARGET = "expert_target"  # eq. 8 (i)
    EXPERT_FAILURE = "expert_failure"  # eq. 8 (ii)
    FAILURE_FAILURE = "failure_failure"  # eq. 6 and eq. 8 (iii)
    EXPERT_STEP = "expert_step"  # IPR: two trajectories from the same branch point on
    EXPERT_GROUP = "expert_group"  # HPL: two groups of actions from the same branch point on


#: The kinds whose sides begin in the middle of a trajectory.
STEP_KINDS = (PairKind.EXPERT_STEP, PairKind.EXPERT_GROUP)


class DropReason(StrEnum):
    """Why a candidate pair or a trajectory was not used."""

    TIE = "tie"
    IDENTICAL = "identical"
    MISSING_EXPERT = "missing_expert"
    MISSING_ROLLOUT = "missing_rollout"
    NOT_A_FAILURE = "not_a_failure"
    NOT_HARD = "not_hard"  # a failure pair whose chosen side is below the reward of hard negatives
    NOT_SELECTED = "not_selected"  # with a failure that the rule `pairing.failures` does not take
    EXPERT_BEATEN = "expert_beaten"
    CONFLICT = "conflict"  # a pair whose rejected side is the chosen side of another pair
    ENV_ERROR = "env_error"
    EMPTY = "empty"  # a side without actions
    OVERLONG = "overlong"  # a side beyond the training context, or an expert with more turns than the step limit
    LOW_REWARD = "low_reward"  # an expert or a rollout below the required reward
    GOLD_FAILS = "gold_fails"  # an item whose gold statement fails on the server
    DUPLICATE = "duplicate"
    OVERLAP = "overlap"  # a training task that is also an evaluation task
    NOT_IN_SPLIT = "not_in_split"
    NOT_USED = "not_used"  # of an agent that the method does not use; in RFT an expert with `with_experts: false`
    SURPLUS = "surplus"  # a success beyond the limit per task
    MARGIN = "margin"  # the side with the better outcome lacks the better step value by the margin
    REPLAY_DIFFERS = "replay_differs"  # the environment's observations differ from the expert's record


class Drop(Record):
    """A candidate pair or trajectory that was not used; `ids` are the digests of the trajectories concerned."""

    task_id: str
    reason: DropReason
    ids: tuple[str, ...] = ()
    kind: PairKind | None = None
    detail: str = ""


class PreferencePair(Record):
    """A chosen and a rejected completion of one prompt, with TRL's conversational keys and the pair's weights.

    `*_token_ids` hold the sampled ids of each assistant turn, in order; empty for a turn that was not sampled (an
    expert's), which is tokenised when the pair is rendered. `lambda_dpo` and `lambda_sft` are the weights of eq. 9.
    `phase`: from which phase of a curriculum on the pair is trained on; left out if it is the first.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    task_id: str
    kind: PairKind
    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    chosen_token_ids: tuple[tuple[int, ...], ...]
    rejected_token_ids: tuple[tuple[int, ...], ...]
    chosen_id: str
    rejected_id: str
    chosen_reward: Reward
    rejected_reward: Reward
    lambda_dpo: float
    lambda_sft: float
    phase: int = Field(default=1, exclude_if=lambda phase: phase == 1)


class KindCount(Record):
    """Counts of the candidates of one pair kind; `swapped`, `cut` and `other_prompt` are counted among `pairs`."""

    candidates: int
    pairs: int
    swapped: int
    cut: int
    other_prompt: int = 0  # missing in older files
    drops: dict[DropReason, int]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        assert self.candidates == self.pairs + sum(self.drops.values()), f"candidates are lost: {self}"
        return self


class TrajectoryCount(Record):
    """Counts of the input trajectories.

    `paired`: in a pair. `dropped`: in drops only. `not_used`: in neither, of an agent that no kind of the recipe uses.
    """

    # The second names are those of older files.
    total: int = Field(validation_alias=AliasChoices("total", "came_in"))
    paired: int
    dropped: int
    not_used: int = Field(validation_alias=AliasChoices("not_used", "unasked"))

    @model_validator(mode="after")
    def _complete(self) -> Self:
        assert self.total == self.paired + self.dropped + self.not_used, f"trajectories are lost: {self}"
        return self


class PairingSummary(Record):
    """Counts of a pairing: by pair kind, of drops without a kind (`without_kind`), and of the input trajectories.

    `empty` has a sentence for each kind without a pair. `played` counts the episodes and tokens of each policy that
    continued prefixes, `sampled_tokens` their tokens; both are omitted where nothing was played.
    """

    kinds: dict[PairKind, KindCount]
    without_kind: dict[DropReason, int] = Field(validation_alias=AliasChoices("without_kind", "strays"))
    trajectories: TrajectoryCount
    empty: tuple[str, ...]
    played: dict[str, dict[str, int]] | None = Field(default=None, exclude_if=is_none)
    sampled_tokens: int | None = Field(default=None, exclude_if=is_none)
