"""Key lengths over which attention gives the same bits as over the whole width of a cache.

Masked positions have weight 0, so attention over the first `span` positions equals attention over all of them, except
for the order in which a kernel adds up the others. Whether the order is the same depends on the machine's kernels and
on the shapes of the matrix products; the spans with equal bits are therefore found by trial.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

_STEP = 64
_MAX_CANDIDATES = 16


def exact_spans(
    attention: Any, cache_shape: tuple[int, ...], queries: int, *, device: torch.device, dtype: torch.dtype
) -> list[int]:
    """Ascending numbers of positions over which `attention` of `queries` tokens a row is exact; the last is the width.

    `attention` is a decoder's attention layer, `cache_shape` the shape of its keys, [rows, KV heads, width, head_dim].
    On a device other than a CPU, where bits are not promised, all candidates.
    """
    width = cache_shape[2]
    step = -(-width // (_STEP * _MAX_CANDIDATES)) * _STEP
    candidates = range(step, width, step)
    if device.type == "cpu":
        generator = torch.Generator().manual_seed(0)
        keys, values = torch.randn((2, *cache_shape), generator=generator).to(dtype)
        return [*(span for span in candidates if _same_bits(attention, keys, values, min(queries, span), span)), width]
    return [*candidates, width]


def shortest(spans: Sequence[int], length: int) -> int:
    """The smallest of the ascending `spans` that holds `length` positions."""
    return spans[bisect.bisect_left(spans, length)]


def _same_bits(attention: Any, keys: torch.Tensor, values: torch.Tensor, queries: int, span: int) -> bool:
    """Whether the tokens at the last `queries` of `span` positions attend to `span` positions as to all of them.

    Runs the function that the model runs: for grouped heads its matrix products have other shapes than for plain ones,
    and for one token of grouped heads others again.
    """
    rows, _, width, _ = keys.shape
    # Only the shape of the queries matters: any states will do.
    query = keys[:, :, span - queries : span].repeat(1, attention.num_key_value_groups, 1, 1)
    future = torch.arange(width) > torch.arange(span - queries, span)[:, None]
    mask = torch.zeros((rows, 1, queries, width), dtype=keys.dtype).masked_fill(future, -torch.inf)
    whole, part = (
        sdpa_attention_forward(
            attention, query, keys[:, :, :end], values[:, :, :end], mask[..., :end], scaling=attention.scaling
        )[0]
        for end in (width, span)
    )
    return torch.equal(whole, part)
