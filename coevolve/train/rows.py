"""Rows of token ids, how they are cut to the context, and in which order they are learned from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from coevolve import seeds
from coevolve.types import PairKind

#: A slot of a step that no row fills.
EMPTY = -1


class TokenRow(Protocol):
    """A trajectory as tokens; `action_mask` is 1 on the tokens the agent produced."""

    @property
    def input_ids(self) -> Sequence[int]:
        """Token ids of the whole conversation."""
        ...

    @property
    def action_mask(self) -> Sequence[int]:
        """One entry per token id."""
        ...


@dataclass(frozen=True)
class Row:
    """A `TokenRow` of plain tuples."""

    input_ids: tuple[int, ...]
    action_mask: tuple[int, ...]

    @property
    def learnable(self) -> bool:
        """Whether any action token is left to predict; the first token is predicted by nothing."""
        return any(self.action_mask[1:])

    @property
    def tokens(self) -> int:
        """Its number of tokens."""
        return len(self.input_ids)


@dataclass(frozen=True)
class PairRow:
    """A preference pair as tokens, with its kind and its own weights of eq. 9.

    `reference`: log-probs in nats of the chosen and the rejected side's tokens, from the second one on, under the
    reference policy (as many as fit the context do); None, of all pairs of a training, where nobody knows them yet.
    """

    kind: PairKind
    chosen: TokenRow
    rejected: TokenRow
    lambda_dpo: float
    lambda_sft: float
    reference: tuple[Tensor, Tensor] | None = None

    @property
    def tokens(self) -> int:
        """The number of tokens of both sides."""
        return len(self.chosen.input_ids) + len(self.rejected.input_ids)


R = TypeVar("R", Row, PairRow)


@dataclass(frozen=True)
class Fitted(Generic[R]):
    """Rows that fit the context: `truncated` of them were cut, `dropped` had no action token left and are gone."""

    rows: tuple[R, ...]
    truncated: int
    dropped: int


def fit_rows(rows: Sequence[TokenRow], context: int) -> Fitted[Row]:
    """Rows of at most `context` tokens, cut on the right: instruction and first actions stay (choice: as ETO cuts)."""
    cut = [_cut(row, context) for row in rows]
    kept = tuple(row for row in cut if row.learnable)
    long = sum(row.learnable and len(old.input_ids) > context for old, row in zip(rows, cut, strict=True))
    return Fitted(kept, truncated=long, dropped=len(rows) - len(kept))


def fit_pairs(pairs: Sequence[PairRow], context: int) -> Fitted[PairRow]:
    """The same for pairs: a pair is truncated if one side is, and dropped if one side has no action token left."""
    kept: list[PairRow] = []
    truncated = 0
    for pair in pairs:
        chosen, rejected = _cut(pair.chosen, context), _cut(pair.rejected, context)
        if chosen.learnable and rejected.learnable:
            ref = pair.reference and (pair.reference[0][: chosen.tokens - 1], pair.reference[1][: rejected.tokens - 1])
            kept.append(PairRow(pair.kind, chosen, rejected, pair.lambda_dpo, pair.lambda_sft, ref))
            truncated += max(len(pair.chosen.input_ids), len(pair.rejected.input_ids)) > context
    return Fitted(tuple(kept), truncated=truncated, dropped=len(pairs) - len(kept))


def everywhere(rows: Sequence[TokenRow]) -> list[Row]:
    """The same rows with every token an action: what pre-training learns from."""
    return [Row(tuple(row.input_ids), (1,) * len(row.input_ids)) for row in rows]


def step_order(n: int, batch_size: int, epochs: float, seed: int) -> list[int]:
    """Which of n rows fills each slot of each step, `batch_size` slots a step, epoch after epoch.

    The last step of an epoch is filled up with `EMPTY`, so a step never mixes epochs and every device has the same
    number of micro-batches. Half an epoch is half of its steps, rounded up.
    """
    steps = math.ceil(n / batch_size)
    slots: list[int] = []
    for epoch in range(math.ceil(epochs)):
        slots += seeds.generator(seed, "order", epoch).permutation(n).tolist()
        slots += [EMPTY] * (steps * batch_size - n)
    return slots[: math.ceil(epochs * steps) * batch_size]


def _cut(row: TokenRow, context: int) -> Row:
    return Row(tuple(row.input_ids[:context]), tuple(row.action_mask[:context]))
