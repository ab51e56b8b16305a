"""Rows of tokens as tensors: padded side by side, or end to end without padding; and their log-probs.

R rows are laid out as B rows of T places; at a place the next token is predicted. The last token of a row is predicted
nowhere but in front of itself, so a row of n tokens has n - 1 predictions, and W is the longest row's number of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from coevolve.train.rows import EMPTY, PairRow, Row, TokenRow

#: Target of a place that predicts nothing to learn from; torch's and transformers' own convention.
IGNORED = -100
#: `padded`: one row of places per row. `flat`: all in one. `shared`: as flat, what a pair begins with alike only once.
Layout = Literal["padded", "flat", "shared"]
Batch = dict[str, Any]

_NOTHING = Row(input_ids=(0, 0), action_mask=(0, 0))


@dataclass(frozen=True)
class RowCollator:
    """Slots of a micro-batch to tensors; one with no row at all becomes a row without a single target."""

    rows: Sequence[Row]
    layout: Layout

    def __call__(self, slots: Sequence[dict[str, int]]) -> Batch:
        """What `lay` gives of the slots' rows."""
        return lay([[self.rows[slot["row"]]] for slot in slots if slot["row"] != EMPTY] or [[_NOTHING]], self.layout)


@dataclass(frozen=True)
class PairCollator:
    """Slots of a micro-batch to tensors: P chosen trajectories, P rejected ones, and what each pair carries along."""

    pairs: Sequence[PairRow]
    layout: Layout

    def __call__(self, slots: Sequence[dict[str, int]]) -> Batch:
        """What `lay` gives of 2P rows; `lambda_dpo`, `lambda_sft`: [P]; `kinds`: P strings; `reference`, [2P, W], where
        the pairs know it. Where no slot has a row, P is 1, both lambdas are 0 and `kinds` is empty.
        """
        pairs = [self.pairs[slot["row"]] for slot in slots if slot["row"] != EMPTY]
        batch = lay([[pair.chosen, pair.rejected] for pair in pairs] or [[_NOTHING, _NOTHING]], self.layout)
        batch |= {
            "lambda_dpo": torch.tensor([pair.lambda_dpo for pair in pairs] or [0.0], dtype=torch.float64),
            "lambda_sft": torch.tensor([pair.lambda_sft for pair in pairs] or [0.0], dtype=torch.float64),
            "kinds": [pair.kind.value for pair in pairs],
        }
        # Also of a micro-batch without a pair: all devices must ask a reference model, or none.
        if self.pairs[0].reference is not None:
            known = [pair.reference for pair in pairs if pair.reference] or [(torch.zeros(1), torch.zeros(1))]
            sides = [side for half in zip(*known, strict=True) for side in half]
            batch["reference"] = pad_sequence(sides, batch_first=True)
        return batch


def lay(groups: Sequence[Sequence[TokenRow]], layout: Layout) -> Batch:
    """Rows as tensors: `input_ids` and `targets`, [B, T]; `index`, [R, W]: the place of each of a row's predictions.

    `learned`, [R, W], is True where the predicted token is the row's own action. Rows of a group may share places; the
    first of all groups come first, then the second ones. Laid end to end they also have `position_ids`, [1, T], and
    their `stretches` for `coevolve.train.varlen_attention`.
    """
    rows = [row for side in zip(*groups, strict=True) for row in side]
    learned = [torch.tensor(row.action_mask[1:], dtype=torch.bool) for row in rows]
    if layout == "padded":
        batch, places = _side_by_side(rows)
    else:
        batch, places = _end_to_end(groups, layout == "shared")
    targets = torch.full_like(batch["input_ids"], IGNORED)
    for row, own, at in zip(rows, learned, places, strict=True):
        targets.view(-1)[at[own]] = torch.tensor(row.input_ids[1:])[own]
    index, chosen = (pad_sequence(parts, batch_first=True) for parts in (places, learned))
    return {**batch, "targets": targets, "index": index, "learned": chosen}


def token_logps(model: torch.nn.Module, batch: Mapping[str, Any], *, fused: bool) -> Tensor:
    """Log pi(t_k | t_<k) in nats of each row's learned tokens, [R, W]; 0 elsewhere.

    `fused`: TRL's tiled head, which never holds all logits but computes in float32; the plain head is exact in any
    precision and faster on a CPU. Both see the places of learned tokens alone.
    """
    inputs = {"input_ids": batch["input_ids"], **batch.get("stretches", {})}
    if "position_ids" in batch:
        inputs["position_ids"] = batch["position_ids"]
    targets = batch["targets"]
    if fused:
        placed: Tensor = model(**inputs, shift_labels=targets, fused_lm_head=True).log_probs
    else:
        placed = _plain_head(model, inputs, targets)
    return placed.flatten()[batch["index"]].masked_fill(~batch["learned"], 0.0)


def _plain_head(model: torch.nn.Module, inputs: Mapping[str, Any], targets: Tensor) -> Tensor:
    wanted = targets != IGNORED
    kept = wanted.any(dim=0).nonzero().squeeze(1)
    logits: Tensor = model(**inputs, logits_to_keep=kept, use_cache=False).logits[wanted[:, kept]]
    logps = -cross_entropy(logits, targets[wanted], reduction="none")
    return logps.new_zeros(targets.shape).masked_scatter(wanted, logps)


def _side_by_side(rows: Sequence[TokenRow]) -> tuple[Batch, list[Tensor]]:
    """Rows padded on the right, and the places of their predictions.

    There is no attention mask: attention is causal and padding comes last, so no real token ever sees it.
    """
    ids = pad_sequence([torch.tensor(row.input_ids) for row in rows], batch_first=True)
    width = ids.shape[1]
    places = [torch.arange(len(row.input_ids) - 1) + number * width for number, row in enumerate(rows)]
    return {"input_ids": ids}, places


def _end_to_end(groups: Sequence[Sequence[TokenRow]], share: bool) -> tuple[Batch, list[Tensor]]:
    """Rows in one, and the places of their predictions, the first rows of all groups first."""
    line = _Line()
    found = []
    for first, *others in groups:
        begin = line.length
        own = line.add(first)
        found.append([own, *(line.add(row, _alike(first, row) if share else 0, begin) for row in others)])
    return line.batch(), [places for side in zip(*found, strict=True) for places in side]


@dataclass
class _Line:
    """Rows laid end to end: their ids, each one's position in its row, and for each row the places of its tokens."""

    ids: list[Tensor] = field(default_factory=list)
    positions: list[Tensor] = field(default_factory=list)
    places: list[Tensor] = field(default_factory=list)

    @property
    def length(self) -> int:
        return sum(map(len, self.ids))

    def add(self, row: TokenRow, alike: int = 0, begin: int = 0) -> Tensor:
        """Lay down a row but for `alike` first tokens, which lie from `begin` on; returns its predictions' places."""
        ids = torch.tensor(row.input_ids)
        own = torch.arange(len(ids) - alike) + self.length
        places = torch.cat([torch.arange(begin, begin + alike), own])
        self.ids.append(ids[alike:])
        self.positions.append(torch.arange(alike, len(ids)))
        self.places.append(places)
        return places[:-1]

    def batch(self) -> Batch:
        queries, keys = (list(map(len, parts)) for parts in (self.ids, self.places))
        stretches: dict[str, Any] = {
            "cu_seq_lens_q": _ends(queries),
            "cu_seq_lens_k": _ends(keys),
            "max_length_q": max(queries),
            "max_length_k": max(keys),
        }
        if queries != keys:
            stretches["key_index"] = torch.cat(self.places)
        ids, positions = (torch.cat(parts).unsqueeze(0) for parts in (self.ids, self.positions))
        return {"input_ids": ids, "position_ids": positions, "stretches": stretches}


def _alike(first: TokenRow, row: TokenRow) -> int:
    """How many of a row's first tokens need not be laid down again.

    Of those that are as in `first` the last is: what comes after it is not the same for both.
    """
    common = zip(first.input_ids, row.input_ids, strict=False)
    differing = (k for k, (a, b) in enumerate(common) if a != b)
    return max(0, next(differing, min(len(first.input_ids), len(row.input_ids))) - 1)


def _ends(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
