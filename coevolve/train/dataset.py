"""Training examples, cut to the context, and the order in which a training visits them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from torch import Tensor

from coevolve import seeds
from coevolve.chat.chat_template import TokenizedTrajectory
from coevolve.records.pairs import PairKind

#: A slot of a global batch that holds no example.
EMPTY_SLOT = -1


@dataclass(frozen=True)
class TokenizedPair:
    """A preference pair as token ids, with its kind and its weights of eq. 9.

    `reference_logps`: log-probs in nats of the chosen and of the rejected tokens, from the second token on, under the
    reference policy. All pairs of a training have them, or none has. `gold`: the chosen side is an expert's. `phase`:
    see `slot_order`.
    """

    kind: PairKind
    chosen: TokenizedTrajectory
    rejected: TokenizedTrajectory
    lambda_dpo: float
    lambda_sft: float
    reference_logps: tuple[Tensor, Tensor] | None = None
    gold: bool = False
    phase: int = 1

    def __len__(self) -> int:
        return len(self.chosen) + len(self.rejected)

    @property
    def has_targets(self) -> bool:
        """Whether both sides have an action token to predict."""
        return self.chosen.has_targets and self.rejected.has_targets

    def truncate(self, context: int) -> TokenizedPair:
        """The pair with the first `context` tokens of each side."""
        logps = self.reference_logps
        return replace(
            self,
            chosen=self.chosen.truncate(context),
            rejected=self.rejected.truncate(context),
            reference_logps=logps and (logps[0][: context - 1], logps[1][: context - 1]),
        )


Example = TypeVar("Example", TokenizedTrajectory, TokenizedPair)


@dataclass(frozen=True)
class TrainingSet(Generic[Example]):
    """Examples that fit the context. `truncated` of them were cut; `dropped` more had no action token left."""

    examples: tuple[Example, ...]
    truncated: int
    dropped: int


def cut_to_context(examples: Sequence[Example], context: int) -> TrainingSet[Example]:
    """Examples of at most `context` tokens, or two sides of as many, cut on the right so that the instruction stays.

    choice: as ETO cuts. An example is dropped if it, or one of its sides, has no action token left.
    """
    cut = [(example, example.truncate(context)) for example in examples]
    kept = [(example, part) for example, part in cut if part.has_targets]
    truncated = sum(len(part) < len(example) for example, part in kept)
    return TrainingSet(tuple(part for _, part in kept), truncated, dropped=len(examples) - len(kept))


def steps_of(epochs: float, epoch_steps: float) -> int:
    """The gradient steps of `epochs` epochs, rounded up, but not for millionths: 1.1 epochs of 10 steps are 11."""
    return math.ceil(round(epochs * epoch_steps, 6))


def slot_order(examples: int, batch_size: int, epochs: float, seed: int, phases: Sequence[int] = ()) -> list[int]:
    """The index of the example in each slot of each step, `batch_size` slots a step, epoch after epoch.

    The last step of an epoch is filled up with `EMPTY_SLOT`: a step never mixes epochs, and every rank has the same
    number of micro-batches. `phases`: each example's phase of a curriculum, of which every one takes an equal part of
    the epochs; an epoch visits the examples of its phase and of those before it, the last epoch all.
    """
    steps, last = math.ceil(examples / batch_size), max(phases, default=1)
    slots: list[int] = []
    for epoch in range(math.ceil(epochs)):
        reached = math.ceil(last * (epoch + 1) / epochs)
        order = seeds.generator(seed, "order", epoch).permutation(examples).tolist()
        visited = [index for index in order if not phases or phases[index] <= reached]
        slots += visited + [EMPTY_SLOT] * (-len(visited) % batch_size)
    return slots[: steps_of(epochs, steps) * batch_size]
