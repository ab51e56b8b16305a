"""Training examples, cut to the context, and the order in which a training visits them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from torch import Tensor

from coevolve import seeds
from coevolve.chat.chat_template import TokenizedTrajectory
from coevolve.types import PairKind

#: A slot of a global batch that holds no example.
EMPTY_SLOT = -1


@dataclass(frozen=True)
class TokenizedPair:
    """A preference pair as token ids, with its kind and its weights of eq. 9.

    `reference_logps`: log-probs in nats of the chosen and of the rejected tokens, from the second token on, under the
    reference policy. All pairs of a training have them, or none has. `gold`: the chosen side is an expert's.
    """

    kind: PairKind
    chosen: TokenizedTrajectory
    rejected: TokenizedTrajectory
    lambda_dpo: float
    lambda_sft: float
    reference_logps: tuple[Tensor, Tensor] | None = None
    gold: bool = False

    def __len__(self) -> int:
        """The number of tokens of both sides."""
        return len(self.chosen) + len(self.rejected)


Example = TypeVar("Example", TokenizedTrajectory, TokenizedPair)


@dataclass(frozen=True)
class TrainingSet(Generic[Example]):
    """Examples that fit the context. `truncated` of them were cut; `dropped` more had no action token left."""

    examples: tuple[Example, ...]
    truncated: int
    dropped: int


def fit_trajectories(trajectories: Sequence[TokenizedTrajectory], context: int) -> TrainingSet[TokenizedTrajectory]:
    """Trajectories of at most `context` tokens, cut on the right (choice: as ETO), so that the instruction stays."""
    kept = [trajectory for trajectory in trajectories if trajectory.truncate(context).has_targets]
    return TrainingSet(
        tuple(trajectory.truncate(context) for trajectory in kept),
        truncated=sum(len(trajectory) > context for trajectory in kept),
        dropped=len(trajectories) - len(kept),
    )


def fit_pairs(pairs: Sequence[TokenizedPair], context: int) -> TrainingSet[TokenizedPair]:
    """Pairs with sides of at most `context` tokens.

    A pair counts as truncated if one side was cut, and is dropped if one side has no action token left.
    """
    kept = [
        pair
        for pair in pairs
        if pair.chosen.truncate(context).has_targets and pair.rejected.truncate(context).has_targets
    ]
    return TrainingSet(
        tuple(_truncate_pair(pair, context) for pair in kept),
        truncated=sum(max(len(pair.chosen), len(pair.rejected)) > context for pair in kept),
        dropped=len(pairs) - len(kept),
    )


def slot_order(examples: int, batch_size: int, epochs: float, seed: int) -> list[int]:
    """The index of the example in each slot of each step, `batch_size` slots a step, epoch after epoch.

    The last step of an epoch is filled up with `EMPTY_SLOT`: a step never mixes epochs, and every rank has the same
    number of micro-batches. Half an epoch is half of its steps, rounded up.
    """
    steps = math.ceil(examples / batch_size)
    slots: list[int] = []
    for epoch in range(math.ceil(epochs)):
        slots += seeds.generator(seed, "order", epoch).permutation(examples).tolist()
        slots += [EMPTY_SLOT] * (steps * batch_size - examples)
    return slots[: math.ceil(epochs * steps) * batch_size]


def _truncate_pair(pair: TokenizedPair, context: int) -> TokenizedPair:
    logps = pair.reference_logps and (pair.reference_logps[0][: context - 1], pair.reference_logps[1][: context - 1])
    return replace(
        pair, chosen=pair.chosen.truncate(context), rejected=pair.rejected.truncate(context), reference_logps=logps
    )
