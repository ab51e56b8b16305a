"""Attention over sequences that lie end to end in one row, without padding and without a mask.

A row is cut into stretches. The tokens of a stretch see each other, causally, and before them the keys that the stretch
is given of others: two sequences that begin alike are then one whole stretch and one that goes on from its beginning.
On a GPU this is one call of the FlashAttention kernel that PyTorch has for sequences of different lengths (not run
here); elsewhere each stretch is attended to alone. The numbers are those of padded rows, up to rounding.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from coevolve.errors import UserError

_NAME = "stretches"


def use(model: Any) -> Any:
    """The model, reading rows of stretches from here on; other rows must come without padding on their left.

    Raises `UserError` for a model that drops attention weights, or whose layers do not see all that came before.
    """
    if getattr(model.config, "attention_dropout", 0.0):
        raise UserError(f"{model.name_or_path}: `attention_dropout` is not 0; set it to 0 in config.json.")
    kinds = getattr(model.config, "layer_types", None)
    windows = not kinds and getattr(model.config, "sliding_window", None)
    if windows or set(kinds or ()) - {"full_attention"}:
        raise UserError(f"{model.name_or_path}: not all layers have full attention; set `layout: padded`.")
    AttentionInterface.register(_NAME, attend)
    model.set_attn_implementation(_NAME)
    return model


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: int = 0,
    max_length_k: int = 0,
    key_index: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers asks of an attention: from [1, heads, T, dim] to [1, T, heads, dim].

    The stretches of queries end at `cu_seq_lens_q`, [N + 1], those of the keys they see at `cu_seq_lens_k`, among the
    keys at `key_index` (None: all, in order); the last key of a stretch is its last query's own. Without stretches the
    rows are whole sequences.
    """
    if cu_seq_lens_q is None or cu_seq_lens_k is None:
        rows: Tensor = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)[0]
        return rows, None
    if key_index is not None:
        key, value = key.index_select(2, key_index), value.index_select(2, key_index)
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else query.dtype
    if not query.is_cuda or dtype == torch.float32:
        return _one_by_one(query, key, value, cu_seq_lens_q, cu_seq_lens_k, scaling), None
    q, k, v = (states[0].transpose(0, 1).to(dtype) for states in (query, key, value))
    lengths = (cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
    # A window without a right side is causal, and aligned to the last key.
    seen = varlen_attn(q, k, v, *lengths, scale=scaling, window_size=(-1, 0), enable_gqa=q.shape[1] != k.shape[1])
    assert isinstance(seen, Tensor)
    return seen.unsqueeze(0), None


def _one_by_one(
    query: Tensor, key: Tensor, value: Tensor, query_ends: Tensor, key_ends: Tensor, scale: float | None
) -> Tensor:
    grouped = query.shape[1] != key.shape[1]
    found = []
    stretches = zip(*(itertools.pairwise(ends.tolist()) for ends in (query_ends, key_ends)), strict=True)
    for queries, keys in stretches:
        q = query[:, :, slice(*queries)]
        k, v = (states[:, :, slice(*keys)] for states in (key, value))
        before = k.shape[2] - q.shape[2]
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(before) if before else None
        found.append(
            scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=scale, enable_gqa=grouped)
        )
    return torch.cat(found, dim=2).transpose(1, 2)
