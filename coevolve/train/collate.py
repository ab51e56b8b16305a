"""Micro-batches: token sequences as tensors, padded or packed, their log-probs under a model, and eq. 5.

R sequences fill B rows of T positions. A position predicts the next token of its sequence, so a sequence of n tokens
has n - 1 predictions; W is the largest number of predictions of a sequence.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from coevolve.chat.chat_template import TokenizedTrajectory
from coevolve.train import varlen_attention
from coevolve.train.dataset import EMPTY_SLOT, TokenizedPair

#: Label of a position that predicts no action token; the convention of torch and transformers.
IGNORED = -100
#: `padded`: one row per sequence. `flat`: all sequences packed into one row. `shared`: as flat, with the common prefix
#: of a pair stored once.
Layout = Literal["padded", "flat", "shared"]
MicroBatch = dict[str, Any]

#: What a rank computes when all slots of its micro-batch are empty: no target, so no gradient.
_DUMMY = TokenizedTrajectory(input_ids=(0, 0), action_mask=(0, 0))


@dataclass(frozen=True)
class TrajectoryCollator:
    """Turns slots (indices of `trajectories`, or `EMPTY_SLOT`) into a micro-batch.

    Its `items`, over which the training takes the mean, are the action tokens, or the trajectories if `summed`.
    """

    trajectories: Sequence[TokenizedTrajectory]
    layout: Layout
    summed: bool = False

    def __call__(self, slots: Sequence[int]) -> MicroBatch:
        """The tensors of `collate`, without any trajectory one row without targets, and the number of `items`."""
        rows = [[self.trajectories[slot]] for slot in slots if slot != EMPTY_SLOT]
        batch = collate(rows or [[_DUMMY]], self.layout)
        return batch | {"items": len(rows) if self.summed else int(batch["action_mask"].sum())}


@dataclass(frozen=True)
class PairCollator:
    """Turns slots (indices of `pairs`, or `EMPTY_SLOT`) into a micro-batch of P chosen and P rejected trajectories."""

    pairs: Sequence[TokenizedPair]
    layout: Layout

    def __call__(self, slots: Sequence[int]) -> MicroBatch:
        """The tensors of `collate` for 2P sequences, chosen ones first, and the weights and kinds of the pairs.

        `lambda_dpo`, `lambda_sft`: [P]; `kinds`: P strings; `items`: P; `reference_logps`: [2P, W], if the pairs have
        them. If all slots are empty, there is one pair with weights of 0, `kinds` is empty and `items` is 0.
        """
        pairs = [self.pairs[slot] for slot in slots if slot != EMPTY_SLOT]
        batch = collate([[pair.chosen, pair.rejected] for pair in pairs] or [[_DUMMY, _DUMMY]], self.layout)
        batch |= {
            "lambda_dpo": torch.tensor([pair.lambda_dpo for pair in pairs] or [0.0], dtype=torch.float64),
            "lambda_sft": torch.tensor([pair.lambda_sft for pair in pairs] or [0.0], dtype=torch.float64),
            "kinds": [pair.kind.value for pair in pairs],
            "items": len(pairs),
        }
        # Also for an empty micro-batch: either all ranks run a reference model in a step, or none does.
        if self.pairs[0].reference_logps is not None:
            scored = [pair.reference_logps for pair in pairs if pair.reference_logps] or [(torch.zeros(1),) * 2]
            batch["reference_logps"] = pad_sequence(
                [logps for side in zip(*scored, strict=True) for logps in side], batch_first=True
            )
        return batch


def collate(groups: Sequence[Sequence[TokenizedTrajectory]], layout: Layout) -> MicroBatch:
    """Sequences as tensors, the first ones of all groups first, then the second ones.

    `input_ids` and `shift_labels`, [B, T]: at each position the id of the action token it predicts, else `IGNORED`.
    `prediction_index`, [R, W]: the flattened position of each prediction of a sequence. `action_mask`, [R, W]: True
    where the predicted token is an action token. Packed layouts add `position_ids`, [1, T], and `segments`, the
    keyword arguments of `coevolve.train.varlen_attention`. Sequences of a group may share positions.
    """
    sequences = [sequence for side in zip(*groups, strict=True) for sequence in side]
    masks = [torch.tensor(sequence.action_mask[1:], dtype=torch.bool) for sequence in sequences]
    if layout == "padded":
        batch, positions = _pad(sequences)
    else:
        batch, positions = _pack(groups, share=layout == "shared")
    labels = torch.full_like(batch["input_ids"], IGNORED)
    for sequence, mask, predicting in zip(sequences, masks, positions, strict=True):
        labels.view(-1)[predicting[mask]] = torch.tensor(sequence.input_ids[1:])[mask]
    index, action_mask = (pad_sequence(parts, batch_first=True) for parts in (positions, masks))
    return {**batch, "shift_labels": labels, "prediction_index": index, "action_mask": action_mask}


def token_logps(model: torch.nn.Module, batch: Mapping[str, Any], *, tiled: bool) -> Tensor:
    """Log pi(t_k | t_<k) in nats of the action tokens of each sequence, [R, W]; 0 elsewhere.

    `tiled`: the head of `add_tiled_head`, which never holds all logits. The plain head is faster on a CPU. Both compute
    logits in the type of the pass, at the positions that predict action tokens alone, and the softmax in float32 (the
    plain head of a float64 model in float64).
    """
    inputs = {"input_ids": batch["input_ids"], **batch.get("segments", {})}
    if "position_ids" in batch:
        inputs["position_ids"] = batch["position_ids"]
    labels = batch["shift_labels"]
    with varlen_attention.packed_row() if "segments" in batch else contextlib.nullcontext():
        if tiled:
            logps: Tensor = model(**inputs, shift_labels=labels, fused_lm_head=True).log_probs
        else:
            logps = _plain_head(model, inputs, labels)
    return logps.flatten()[batch["prediction_index"]].masked_fill(~batch["action_mask"], 0.0)


def trajectory_logps(token_logps: Tensor, action_mask: Tensor) -> Tensor:
    """Log pi(e | u) in nats of B trajectories, [B] (eq. 2): the sum over action tokens alone of [B, T]."""
    return token_logps.masked_fill(~action_mask, 0.0).sum(dim=1)


def sft_losses(token_logps: Tensor, action_mask: Tensor) -> Tensor:
    """Eq. 5 for each trajectory, [B], in nats: -sum_k log pi(t_k | t_<k) 1(t_k in A)."""
    return -trajectory_logps(token_logps, action_mask)


def add_tiled_head(model: torch.nn.Module) -> None:
    """Give the model TRL's fused head, which `token_logps` uses with `tiled`; before adapters are added."""
    from trl.trainer.utils import add_fused_lm_head  # on GPUs only: a CPU job need not import TRL

    add_fused_lm_head(model)


def _plain_head(model: torch.nn.Module, inputs: Mapping[str, Any], labels: Tensor) -> Tensor:
    predicting = labels != IGNORED
    kept = predicting.any(dim=0).nonzero().squeeze(1)
    logits: Tensor = model(**inputs, logits_to_keep=kept, use_cache=False).logits[predicting[:, kept]]
    wide = logits.float() if logits.dtype == torch.bfloat16 else logits
    logps = -cross_entropy(wide, labels[predicting], reduction="none")
    return logps.new_zeros(labels.shape).masked_scatter(predicting, logps)


def _pad(sequences: Sequence[TokenizedTrajectory]) -> tuple[MicroBatch, list[Tensor]]:
    """Sequences padded on the right, to which no real token attends, and the positions of their predictions."""
    ids = pad_sequence([torch.tensor(sequence.input_ids) for sequence in sequences], batch_first=True)
    width = ids.shape[1]
    positions = [torch.arange(len(sequence) - 1) + number * width for number, sequence in enumerate(sequences)]
    return {"input_ids": ids}, positions


def _pack(groups: Sequence[Sequence[TokenizedTrajectory]], *, share: bool) -> tuple[MicroBatch, list[Tensor]]:
    """All sequences in one row, with `share` a group's common prefix once, and the positions of their predictions."""
    ids, position_ids, keys = [], [], []
    length = 0
    for group in groups:
        start = length
        for number, sequence in enumerate(group):
            shared = _common_prefix(group[0], sequence) if share and number else 0
            end = length + len(sequence) - shared
            ids.append(torch.tensor(sequence.input_ids[shared:]))
            position_ids.append(torch.arange(shared, len(sequence)))
            keys.append(torch.cat([torch.arange(start, start + shared), torch.arange(length, end)]))
            length = end
    queries, spans = (list(map(len, parts)) for parts in (ids, keys))
    segments: dict[str, Any] = {
        "cu_seq_lens_q": _ends(queries),
        "cu_seq_lens_k": _ends(spans),
        "max_length_q": max(queries),
        "max_length_k": max(spans),
    }
    if queries != spans:
        segments["key_index"] = torch.cat(keys)
    row = {"input_ids": torch.cat(ids)[None], "position_ids": torch.cat(position_ids)[None], "segments": segments}
    size = len(groups[0])
    return row, [positions[:-1] for side in range(size) for positions in keys[side::size]]


def _common_prefix(first: TokenizedTrajectory, other: TokenizedTrajectory) -> int:
    """The tokens that `other` can share with `first`: all common ones but the last, which predict different tokens."""
    common = zip(first.input_ids, other.input_ids, strict=False)
    differing = (k for k, (a, b) in enumerate(common) if a != b)
    return max(0, next(differing, min(len(first), len(other))) - 1)


def _ends(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
