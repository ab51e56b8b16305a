"""What was not used, and why."""

from enum import StrEnum

from coevolve.config.names import PairKind
from coevolve.records.base import Record


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
