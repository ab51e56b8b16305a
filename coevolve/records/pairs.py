"""Preference pairs, and the counts of a pairing."""

from typing import Literal, Self

from pydantic import AliasChoices, Field, model_validator

from coevolve.config.names import PairKind
from coevolve.records.base import SCHEMA_VERSION, Record, is_none
from coevolve.records.drops import DropReason
from coevolve.records.episodes import Message, Reward


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
