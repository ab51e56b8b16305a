"""Over how many positions attention may run without a bit of its result changing.

Positions beyond a conversation's last one have weight 0, so leaving them out changes nothing but the order in which a
kernel adds the others up, and that only for some numbers of positions. Which ones, each machine is asked.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import torch
from torch.nn.functional import scaled_dot_product_attention

_STEP = 64
_MOST = 16  # candidates


def exact_spans(queries: int, head_dim: int, width: int, *, device: torch.device, dtype: torch.dtype) -> list[int]:
    """Numbers of positions over which attention of `queries` tokens gives the bits it gives over `width`, the last.

    On anything but a CPU, where no bits are promised, all candidates.
    """
    step = -(-width // (_STEP * _MOST)) * _STEP
    candidates = range(step, width, step)
    if device.type == "cpu":
        generator = torch.Generator().manual_seed(0)
        states = torch.randn((3, 2, 1, width, head_dim), generator=generator).to(dtype)
        return [*(span for span in candidates if _same_bits(states, min(queries, span), span)), width]
    return [*candidates, width]


def shortest(spans: Sequence[int], length: int) -> int:
    """The smallest of the ascending `spans` that holds `length` positions."""
    return spans[bisect.bisect_left(spans, length)]


def _same_bits(states: torch.Tensor, queries: int, span: int) -> bool:
    """Whether the last `queries` of `span` positions see the same over all of `states` [3, B, heads, width, dim]."""
    query, key, value = states
    asking = query[:, :, span - queries : span]
    place = torch.arange(span - queries, span)
    blocked = torch.arange(states.shape[-2]) > place[:, None]
    mask = torch.zeros(blocked.shape, dtype=states.dtype).masked_fill(blocked, -torch.inf)
    whole = scaled_dot_product_attention(asking, key, value, attn_mask=mask)
    part = scaled_dot_product_attention(asking, key[:, :, :span], value[:, :, :span], attn_mask=mask[:, :span])
    return torch.equal(whole, part)
