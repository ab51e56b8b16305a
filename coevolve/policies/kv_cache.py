"""Prefill and decode passes of a decoder over many conversations, with their KV cache.

The tokens of a pass lie in one row without padding, whatever conversations they belong to: [1, N, hidden]. The linear
layers run over numbers of tokens that give equal bits (`exact_shapes.exact_rows`), and attention over one conversation
at a time: chunks of CHUNK prompt tokens over numbers of positions that give equal bits (`exact_spans`), or one decoded
token over the positions up to its own. The keys and values of a prompt therefore depend on its token ids alone, to the
bit. Those of decoded tokens have other bits than prefilled ones; the next turn's prefill overwrites them.

On a GPU, where bits are not promised, attention runs over all conversations of a pass at once (not run here).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import AttentionInterface

from coevolve.errors import UserError
from coevolve.policies.exact_shapes import RowFunction, attend, exact_rows, exact_spans, shortest

#: Tokens of a prefill pass, and tokens of a conversation that attend together.
PREFILL_TOKENS, CHUNK = 256, 32
_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_ATTENTION = "cached_conversations"


@dataclass(frozen=True)
class Prefill:
    """Token ids to write to a slot, from position `start` on."""

    slot: int
    start: int
    ids: tuple[int, ...]

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.start + len(self.ids)


class KeyValueCache:
    """Keys and values of all slots, [2, slots + 1, heads, width, head_dim] per layer; the last slot takes padding.

    Takes the place of transformers' `Cache`; decoders call only its `update`. Before a pass, set `targets`: slot and
    position of each token, [N] each.
    """

    def __init__(self, model: Any, slots: int, width: int) -> None:
        layers, shape = _cache_shape(model.config, slots + 1, width)
        kind = {"device": model.device, "dtype": model.dtype}
        self.states = [torch.zeros((2, *shape), **kind) for _ in range(layers)]
        self.targets: tuple[torch.Tensor, torch.Tensor]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values [1, heads, N, head_dim]; returns those of all slots, [slots + 1, heads, width, ...]."""
        states, (slots, positions) = self.states[layer_idx], self.targets
        states[0, slots, :, positions] = key_states[0].transpose(0, 1)
        states[1, slots, :, positions] = value_states[0].transpose(0, 1)
        return states[0], states[1]


@dataclass(frozen=True)
class TokenSegment:
    """Tokens of a pass that attend together: `count` of a conversation, the first of them at `start` in its slot.

    They attend to the first `span` positions of `slot`; `mask` [1, 1, C, span] for as many tokens as the kernel gets,
    None for a single token that attends to all of them.
    """

    slot: int
    start: int
    count: int
    span: int
    mask: torch.Tensor | None = None


class CachedDecoder:
    """A model with KV caches for `slots` conversations of up to `context` tokens.

    Raises `UserError` for architectures without support, and if `context` exceeds the model's positions.
    """

    def __init__(self, model: Any, *, slots: int, context: int) -> None:
        _check_model(model.config, context)
        AttentionInterface.register(_ATTENTION, _attend_segments)
        self._decoder, self._head = model.base_model, model.get_output_embeddings()
        self._slots, width = slots, _padded_width(context)
        self._cache = KeyValueCache(model, slots, width)
        like = self._head.weight[:0]
        with torch.inference_mode():
            self.rows = exact_rows(_row_functions(self._decoder.layers[0]), max(PREFILL_TOKENS, slots), like)
            self.head_rows = exact_rows([(self._head, self._head.in_features)], slots, like)
            attention, (heads, head_dim) = self._decoder.layers[0].self_attn, self._cache.states[0].shape[2::2]
            every = (attention.num_key_value_groups * heads, heads)
            self.spans = exact_spans(every, head_dim, width, CHUNK, attention.scaling, like)

    def prefill(self, prefills: Sequence[Prefill]) -> torch.Tensor:
        """Write prefills to their slots; returns the logits after each one's last token, [R, V]."""
        rows = {(prefill.slot, prefill.end): row for row, prefill in enumerate(prefills)}
        last: dict[int, torch.Tensor] = {}
        # In order of position: a slot's earlier chunk comes before its later one, or into the same pass.
        chunks = sorted((chunk for prefill in prefills for chunk in _chunks(prefill)), key=lambda chunk: chunk.start)
        for batch in _passes(chunks):
            hidden = self._forward(list(map(self._segment, batch)), [token for chunk in batch for token in chunk.ids])
            end = 0
            for chunk in batch:
                end += len(chunk.ids)
                if (chunk.slot, chunk.end) in rows:
                    last[rows[chunk.slot, chunk.end]] = hidden[end - 1]
        return self._logits(torch.stack([last[row] for row in range(len(prefills))]))

    def decode(self, tokens: Mapping[int, tuple[int, int]]) -> torch.Tensor:
        """Append one token to some slots, `tokens`: slot to (position, id); returns the next logits, [R, V]."""
        segments = [TokenSegment(slot, position, 1, position + 1) for slot, (position, _) in tokens.items()]
        return self._logits(self._forward(segments, [token for _, token in tokens.values()]))

    def _segment(self, chunk: Prefill) -> TokenSegment:
        span = shortest(self.spans, chunk.end)
        mask = _causal([chunk.start], CHUNK, span, self._head.weight.device)
        return TokenSegment(chunk.slot, chunk.start, len(chunk.ids), span, mask)

    def _forward(self, segments: Sequence[TokenSegment], ids: Sequence[int]) -> torch.Tensor:
        """Hidden states [N, hidden] of the tokens `ids` of the segments.

        Each layer writes all keys before it attends, so a slot's later chunk attends to an earlier one of this pass.
        """
        padding = shortest(self.rows, len(ids)) - len(ids)
        slots = [s.slot for s in segments for _ in range(s.count)] + [self._slots] * padding
        positions = [p for s in segments for p in range(s.start, s.start + s.count)] + [0] * padding
        device = self._head.weight.device
        at = torch.tensor([slots, positions, [*ids, *[0] * padding]], device=device)
        self._cache.targets = at[0], at[1]
        with _attention_of(self._decoder.config):
            hidden: torch.Tensor = self._decoder(
                input_ids=at[2:],
                attention_mask=at.new_zeros((1, 1, 1, 1)),  # has four dimensions: no other is made
                position_ids=at[1:2],
                past_key_values=self._cache,
                use_cache=True,
                segments=segments,
            ).last_hidden_state
        return hidden[0, : len(ids)]

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, V] after the hidden states [R, hidden]."""
        padding = shortest(self.head_rows, len(hidden)) - len(hidden)
        logits: torch.Tensor = self._head(pad(hidden, (0, 0, 0, padding)))
        return logits[: len(hidden)]


def cache_bytes(model: Any, *, slots: int, context: int) -> int:
    """Bytes of the KV cache of a `CachedDecoder` of this shape."""
    layers, shape = _cache_shape(model.config, slots + 1, _padded_width(context))
    size: int = layers * model.dtype.itemsize * 2 * math.prod(shape)
    return size


@contextlib.contextmanager
def _attention_of(config: Any) -> Iterator[None]:
    """Let a decoder with this config attend by `_attend_segments` inside the block; it may be one in training."""
    before = config._attn_implementation
    config._attn_implementation = _ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before


def _attend_segments(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    segments: Sequence[TokenSegment],
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls: from [1, heads, N, head_dim] to [1, N, heads, head_dim].

    `key` and `value` are those of all slots.
    """
    if query.is_cuda:
        return _attend_at_once(query, key, value, segments, scaling), None
    attended, first = [], 0
    for segment in segments:
        tokens = query[:, :, first : first + segment.count]
        if segment.mask is not None:
            tokens = pad(tokens, (0, 0, 0, segment.mask.shape[2] - segment.count))
        keys, values = (kept[segment.slot, None, :, : segment.span] for kept in (key, value))
        attended.append(attend(tokens, keys, values, segment.mask, scaling)[:, :, : segment.count])
        first += segment.count
    return pad(torch.cat(attended, dim=2), (0, 0, 0, query.shape[2] - first)).transpose(1, 2), None


def _attend_at_once(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Sequence[TokenSegment], scaling: float
) -> torch.Tensor:
    """The same in one call of the kernel, whose rows are the segments with padding."""
    device = query.device
    counts, slots = (
        torch.tensor(column, device=device) for column in zip(*((s.count, s.slot) for s in segments), strict=True)
    )
    span, queries = (max(sizes) for sizes in zip(*((s.span, s.count) for s in segments), strict=True))
    inside = torch.arange(queries, device=device) < counts[:, None]
    padded = query.new_zeros((len(segments), queries, *query.shape[1::2]))
    padded[inside] = query[0].transpose(0, 1)[: int(counts.sum())]
    mask = _causal([segment.start for segment in segments], queries, span, device)
    rows = attend(padded.transpose(1, 2), key[slots, :, :span], value[slots, :, :span], mask, scaling)
    attended = query.new_zeros((1, query.shape[2], *query.shape[1::2]))
    attended[0, : int(counts.sum())] = rows.transpose(1, 2)[inside]
    return attended


def _causal(starts: Sequence[int], queries: int, span: int, device: torch.device) -> torch.Tensor:
    """Which of the first `span` positions each of `queries` tokens from each start on attends to, [R, 1, C, span]."""
    positions = torch.tensor(starts, device=device)[:, None] + torch.arange(queries, device=device)
    return torch.arange(span, device=device) <= positions[:, None, :, None]


def _row_functions(layer: Any) -> Iterator[tuple[RowFunction, int]]:
    """What a layer applies to each token by itself, and the size of its input."""
    linears = [module for module in layer.modules() if isinstance(module, torch.nn.Linear)]
    yield from ((linear, linear.in_features) for linear in linears)
    yield layer.mlp, layer.input_layernorm.weight.shape[0]
    yield layer.input_layernorm, layer.input_layernorm.weight.shape[0]


def _cache_shape(config: Any, rows: int, width: int) -> tuple[int, tuple[int, ...]]:
    """Number of layers, and the shape of one layer's keys, [rows, KV heads, width, head_dim]."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return config.num_hidden_layers, (rows, config.num_key_value_heads, width, head_dim)


def _padded_width(context: int) -> int:
    """Positions of a slot: `context` rounded up to a multiple of CHUNK."""
    return -(-context // CHUNK) * CHUNK


def _chunks(prefill: Prefill) -> Iterator[Prefill]:
    for offset in range(0, len(prefill.ids), CHUNK):
        yield Prefill(prefill.slot, prefill.start + offset, prefill.ids[offset : offset + CHUNK])


def _passes(chunks: Sequence[Prefill]) -> Iterator[list[Prefill]]:
    """The chunks in order, in passes of at most PREFILL_TOKENS tokens."""
    batch: list[Prefill] = []
    for chunk in chunks:
        if sum(len(c.ids) for c in (*batch, chunk)) > PREFILL_TOKENS:
            yield batch
            batch = []
        batch.append(chunk)
    yield batch


def _check_model(config: Any, context: int) -> None:
    if config.model_type not in _ARCHITECTURES or set(getattr(config, "layer_types", None) or ()) - {"full_attention"}:
        known = ", ".join(_ARCHITECTURES)
        raise UserError(
            f"{config.name_or_path}: model type `{config.model_type}` is not supported; use one of {known}."
        )
    if context > config.max_position_embeddings:
        limit = config.max_position_embeddings
        raise UserError(f"{config.name_or_path}: `context` {context} exceeds the model's {limit} positions; lower it.")
