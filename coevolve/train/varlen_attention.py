"""Attention over sequences that are packed into one row, without padding and without an attention mask.

A packed row consists of segments. The queries of a segment attend causally to its own keys, and before those to keys of
another segment: two sequences with a common prefix are one whole segment and one that continues from that prefix. On a
GPU this is one call of PyTorch's FlashAttention kernel for sequences of different lengths; elsewhere one call per
segment. The results are those of padded rows, up to rounding.
"""

import contextlib
import itertools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from coevolve.errors import UserError

_NAME = "segments"
#: Of each call in a pass over a packed row, the class of a module that was not given its segments; "" for the others.
_calls: ContextVar[list[str] | None] = ContextVar("_calls", default=None)


def enable(model: Any) -> Any:
    """The model with this attention for packed rows.

    Raises `UserError` with attention dropout, without full attention, and for a model that takes no other attention.
    """
    if getattr(model.config, "attention_dropout", 0.0):
        raise UserError(f"{model.name_or_path}: `attention_dropout` is not 0; set it to 0 in config.json.")
    layer_types = getattr(model.config, "layer_types", None)
    window = not layer_types and getattr(model.config, "sliding_window", None)
    if window or set(layer_types or ()) - {"full_attention"}:
        raise UserError(f"{model.name_or_path}: not all layers have full attention; set `layout: padded`.")
    AttentionInterface.register(_NAME, attend)
    model.set_attn_implementation(_NAME)
    if model.config._attn_implementation != _NAME:  # transformers only warns
        raise UserError(f"{model.name_or_path}: its attention cannot be replaced; set `layout: padded`.")
    return model


@contextlib.contextmanager
def packed_row() -> Iterator[None]:
    """A pass over a packed row; `UserError` if a layer was not given its segments, and so attended across sequences.

    The decoder layers of some models in transformers, StableLM's and Nemotron's, pass no further arguments on.
    """
    calls: list[str] = []
    outer = _calls.set(calls)
    try:
        yield
    finally:
        _calls.reset(outer)
    if not calls or any(calls):
        name = next(filter(None, calls), "The model's attention")
        raise UserError(f"{name} is not given the segments of packed rows; set `layout: padded`.")


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
    """The attention function that transformers calls: from [1, heads, T, dim] to [1, T, heads, dim].

    Segment n has the queries from `cu_seq_lens_q[n]` to `cu_seq_lens_q[n + 1]`, and those of the keys at `key_index`
    (None: all keys) from `cu_seq_lens_k[n]` to `cu_seq_lens_k[n + 1]`; its last query and its last key belong to the
    same token. Without segments the rows are whole sequences.
    """
    if (calls := _calls.get()) is not None:
        calls.append("" if cu_seq_lens_q is not None else type(module).__name__)
    if cu_seq_lens_q is None or cu_seq_lens_k is None:
        rows: Tensor = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)[0]
        return rows, None
    if key_index is not None:
        key, value = key.index_select(2, key_index), value.index_select(2, key_index)
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else query.dtype
    if not query.is_cuda or dtype == torch.float32:
        return _attend_segments(query, key, value, cu_seq_lens_q, cu_seq_lens_k, scaling), None
    q, k, v = (states[0].transpose(0, 1).to(dtype) for states in (query, key, value))
    lengths = (cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
    # PyTorch 2.11 and 2.12 do not know the argument; they have this attention for as many heads of keys as of queries.
    grouped: dict[str, Any] = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    # A window without a right side is causal attention, aligned to the last key.
    attended = varlen_attn(q, k, v, *lengths, scale=scaling, window_size=(-1, 0), **grouped)
    assert isinstance(attended, Tensor)
    return attended.unsqueeze(0), None


def _attend_segments(
    query: Tensor, key: Tensor, value: Tensor, query_ends: Tensor, key_ends: Tensor, scale: float | None
) -> Tensor:
    grouped = query.shape[1] != key.shape[1]
    attended = []
    segments = zip(*(itertools.pairwise(ends.tolist()) for ends in (query_ends, key_ends)), strict=True)
    for queries, keys in segments:
        q = query[:, :, slice(*queries)]
        k, v = (states[:, :, slice(*keys)] for states in (key, value))
        before = k.shape[2] - q.shape[2]
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(before) if before else None
        attended.append(
            scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=scale, enable_gqa=grouped)
        )
    return torch.cat(attended, dim=2).transpose(1, 2)
