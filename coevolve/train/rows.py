"""Rows of token ids, how they are cut to the context, put in order, and made into batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from coevolve import seeds
from coevolve.types import PairKind

#: Label of a token that is not learned from; torch's and transformers' own convention.
IGNORED = -100
#: A slot of a step that no row fills.
EMPTY = -1


class TokenRow(Protocol):
    """A trajectory as tokens; `action_mask` is 1 on the tokens the agent produced. `coevolve.render` makes them."""

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
    """A preference pair as tokens, with its kind and its own weights of eq. 9."""

    kind: PairKind
    chosen: TokenRow
    rejected: TokenRow
    lambda_dpo: float
    lambda_sft: float

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
            kept.append(PairRow(pair.kind, chosen, rejected, pair.lambda_dpo, pair.lambda_sft))
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


def pad_rows(rows: Sequence[TokenRow]) -> dict[str, Tensor]:
    """`input_ids` and `labels`, both [B, T], padded on the right; labels are `IGNORED` where the agent did not speak.

    There is no attention mask: attention is causal and padding comes last, so no real token ever sees it.
    """
    ids = [torch.tensor(row.input_ids) for row in rows]
    labels = [
        torch.tensor([token if acted else IGNORED for token, acted in zip(row.input_ids, row.action_mask, strict=True)])
        for row in rows
    ]
    return {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=0),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
    }


_NOTHING = Row(input_ids=(0, 0), action_mask=(0, 0))


@dataclass(frozen=True)
class RowCollator:
    """Slots of a micro-batch to tensors; one with no row at all becomes a row without a single label."""

    rows: Sequence[Row]

    def __call__(self, slots: Sequence[dict[str, int]]) -> dict[str, Tensor]:
        """`input_ids` and `labels`, [B, T]."""
        return pad_rows([self.rows[slot["row"]] for slot in slots if slot["row"] != EMPTY] or [_NOTHING])


@dataclass
class PairCollator:
    """Slots of a micro-batch to tensors: P chosen trajectories above P rejected ones, and what each pair carries along.

    `references` holds the per-token log-probs of each pair's two sides once they are computed; empty before.
    """

    pairs: Sequence[PairRow]
    references: Sequence[tuple[Tensor, Tensor]] = ()

    def __call__(self, slots: Sequence[dict[str, int]]) -> dict[str, Any]:
        """`input_ids`, `labels`: [2P, T]; `reference`: [2P, T-1]; `lambda_dpo`, `lambda_sft`: [P]; `kinds`: P strings.

        Where no slot has a row, P is 1, both lambdas are 0 and `kinds` is empty.
        """
        indices = [slot["row"] for slot in slots if slot["row"] != EMPTY]
        pairs = [self.pairs[index] for index in indices]
        batch: dict[str, Any] = {
            **pad_rows([pair.chosen for pair in pairs] + [pair.rejected for pair in pairs] or [_NOTHING, _NOTHING]),
            "lambda_dpo": torch.tensor([pair.lambda_dpo for pair in pairs] or [0.0], dtype=torch.float64),
            "lambda_sft": torch.tensor([pair.lambda_sft for pair in pairs] or [0.0], dtype=torch.float64),
            "kinds": [pair.kind.value for pair in pairs],
        }
        if self.references:
            sides = [self.references[index][side] for side in (0, 1) for index in indices] or [torch.zeros(1)] * 2
            batch["reference"] = pad_sequence(sides, batch_first=True)
        return batch


def _cut(row: TokenRow, context: int) -> Row:
    return Row(tuple(row.input_ids[:context]), tuple(row.action_mask[:context]))
