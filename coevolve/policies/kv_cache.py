"""Prefill and decode passes of a decoder over many conversations, with their KV cache.

The last bits of a row of a matrix product depend on the shape of the product and not on the other rows. Every pass
therefore has one of two shapes, however many conversations take part: prefill [PREFILL_ROWS, CHUNK] tokens, decode
[batch, 1] tokens; attention runs over numbers of positions that give the same bits (`attention_spans`). Prefilled keys
and values stay in the prefill cache; they depend on the token ids alone, to the bit. Decoding works on a copy, the
decode cache, because the bits of decoded positions differ from prefilled ones; sampled tokens are prefilled with the
next turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coevolve.errors import UserError
from coevolve.policies.attention_spans import exact_spans, shortest

Array = NDArray[np.int64]

PREFILL_ROWS = 8
CHUNK = 32
_ARCHITECTURES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True)
class Prefill:
    """Token ids to write to a slot, from position `start` on."""

    slot: int
    start: int
    ids: tuple[int, ...]


class PrefillCache:
    """Keys and values of all slots, [2, slots + 1, heads, width, head_dim] per layer; the last slot takes padding.

    Takes the place of transformers' `Cache` in a prefill pass; decoders call only its `update`. Before a pass, set
    `targets` (slot and position of each token, [R, C] each), `row_slots` (the slot that each row attends to) and `span`
    (the number of positions attended to, one of `spans`).
    """

    def __init__(self, decoder: Any, layers: int, shape: tuple[int, ...]) -> None:
        kind = {"device": decoder.device, "dtype": decoder.dtype}
        self.states = [torch.zeros((2, *shape), **kind) for _ in range(layers)]
        self._gathered = torch.zeros((2, PREFILL_ROWS, *shape[1:]), **kind)
        self.spans = exact_spans(decoder.layers[0].self_attn, (PREFILL_ROWS, *shape[1:]), CHUNK, **kind)
        self.targets: tuple[torch.Tensor, torch.Tensor]
        self.row_slots: Sequence[int] = ()
        self.span = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values [R, heads, C, head_dim]; returns those to attend to, [R, heads, span, head_dim]."""
        _write(self.states[layer_idx], self.targets, key_states, value_states)
        _copy_rows(self._gathered, self.states[layer_idx], self.row_slots, self.span)
        keys, values = self._gathered[:, :, :, : self.span]
        return keys, values


class DecodeCache:
    """Copies of the keys and values of up to `batch` slots, [2, batch, heads, width, head_dim] per layer.

    Takes the place of transformers' `Cache` in a decode pass. Row i of the batch attends to row i of the cache.
    """

    def __init__(self, decoder: Any, prefill_cache: PrefillCache, batch: int) -> None:
        self._prefill_cache = prefill_cache
        self.states = [torch.zeros_like(states[:, :batch]) for states in prefill_cache.states]
        shape = tuple(self.states[0].shape[1:])
        self.spans = exact_spans(decoder.layers[0].self_attn, shape, 1, device=decoder.device, dtype=decoder.dtype)
        self.targets: tuple[torch.Tensor, torch.Tensor]
        self.span = 0

    def load(self, slots: Sequence[int], length: int) -> None:
        """Copy the first `length` positions of `slots` to the first rows."""
        for copied, states in zip(self.states, self._prefill_cache.states, strict=True):
            _copy_rows(copied, states, slots, length)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values [batch, heads, 1, head_dim]; returns those to attend to."""
        _write(self.states[layer_idx], self.targets, key_states, value_states)
        keys, values = self.states[layer_idx][:, :, :, : self.span]
        return keys, values


class CachedDecoder:
    """A model with KV caches for `slots` conversations of up to `context` tokens; decodes `batch` of them at a time.

    Raises `UserError` for architectures without support, and if `context` exceeds the model's positions.
    """

    def __init__(self, model: Any, *, slots: int, batch: int, context: int) -> None:
        _check_model(model.config, context)
        self._decoder, self._head = model.base_model, model.get_output_embeddings()
        self._slots, self._batch, self._width = slots, batch, _padded_width(context)
        self._device = model.device
        self._prefill_cache = PrefillCache(self._decoder, *_cache_shape(model.config, slots + 1, self._width))
        self._decode_cache = DecodeCache(self._decoder, self._prefill_cache, batch)
        self._positions = torch.arange(self._width, device=model.device)
        self._visible, self._masked = torch.tensor([0.0, -torch.inf], device=model.device, dtype=model.dtype)

    def prefill(self, prefills: Sequence[Prefill]) -> torch.Tensor:
        """Write up to `batch` prefills to their slots; returns the logits after each one's last token, [batch, V].

        Row i of the decode cache then holds the slot of the i-th prefill.
        """
        rows = {prefill.slot: row for row, prefill in enumerate(prefills)}
        # In order of position: a slot's earlier chunk comes before its later one, or into the same pass.
        chunks = sorted((chunk for prefill in prefills for chunk in _chunks(prefill)), key=lambda chunk: chunk.start)
        final = self._head.weight.new_zeros(self._batch, self._head.in_features)
        for first in range(0, len(chunks), PREFILL_ROWS):
            batch = chunks[first : first + PREFILL_ROWS]
            hidden = self._prefill_pass(batch)
            for i, chunk in enumerate(batch):
                final[rows[chunk.slot]] = hidden[i, len(chunk.ids) - 1]
        longest = max(prefill.start + len(prefill.ids) for prefill in prefills)
        self._decode_cache.load(list(rows), longest)
        return self._logits(final)

    def decode(self, tokens: Mapping[int, tuple[int, int]]) -> torch.Tensor:
        """Append one token to some rows, `tokens`: row to (position, id); returns the next logits, [batch, V]."""
        ids, positions = np.zeros((2, self._batch, 1), dtype=np.int64)
        for row, (position, token) in tokens.items():
            ids[row], positions[row] = token, position
        return self._logits(self._forward(self._decode_cache, ids, positions, np.arange(self._batch)[:, None])[:, 0])

    def _prefill_pass(self, chunks: Sequence[Prefill]) -> torch.Tensor:
        """Hidden states [PREFILL_ROWS, CHUNK, hidden] of up to PREFILL_ROWS chunks.

        Each layer writes all keys before it attends, so a slot's later chunk attends to an earlier one of this pass.
        """
        ids, positions = np.zeros((2, PREFILL_ROWS, CHUNK), dtype=np.int64)
        slots = np.full((PREFILL_ROWS, CHUNK), self._slots)
        for row, chunk in enumerate(chunks):
            filled = slice(len(chunk.ids))
            ids[row, filled], slots[row, filled] = chunk.ids, chunk.slot
            positions[row, filled] = np.arange(chunk.start, chunk.start + len(chunk.ids))
        self._prefill_cache.row_slots = [int(slot) for slot in slots[:, 0]]
        return self._forward(self._prefill_cache, ids, positions, slots)

    def _forward(self, cache: PrefillCache | DecodeCache, ids: Array, positions: Array, rows: Array) -> torch.Tensor:
        """Hidden states [R, C, hidden] of the tokens `ids` [R, C], cached at `rows` and `positions` of `cache`."""
        position_ids = self._tensor(positions)
        cache.targets = self._tensor(rows), position_ids
        cache.span = shortest(cache.spans, int(positions.max()) + 1)
        causal = self._positions[: cache.span] <= position_ids[:, None, :, None]
        hidden: torch.Tensor = self._decoder(
            input_ids=self._tensor(ids),
            attention_mask=torch.where(causal, self._visible, self._masked),
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        return hidden

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._head(hidden)
        return logits

    def _tensor(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


def cache_bytes(model: Any, *, slots: int, batch: int, context: int) -> int:
    """Bytes of the KV caches of a `CachedDecoder` of this shape."""
    layers, (_, *row) = _cache_shape(model.config, 1, _padded_width(context))
    row_bytes: int = model.dtype.itemsize * 2 * math.prod(row)
    return row_bytes * (layers * (slots + 1 + batch) + PREFILL_ROWS)


def _write(
    states: torch.Tensor, targets: tuple[torch.Tensor, torch.Tensor], keys: torch.Tensor, values: torch.Tensor
) -> None:
    """Write `keys` and `values` [R, heads, C, head_dim] to rows and positions `targets` ([R, C] each) of `states`."""
    rows, positions = targets
    states[0, rows, :, positions] = keys.transpose(1, 2)
    states[1, rows, :, positions] = values.transpose(1, 2)


def _copy_rows(into: torch.Tensor, states: torch.Tensor, rows: Sequence[int], length: int) -> None:
    """Copy the first `length` positions of the `rows` of `states` to the first rows of `into`."""
    for i, row in enumerate(rows):
        into[:, i, :, :length] = states[:, row, :, :length]


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


def _check_model(config: Any, context: int) -> None:
    if config.model_type not in _ARCHITECTURES or set(getattr(config, "layer_types", None) or ()) - {"full_attention"}:
        known = ", ".join(_ARCHITECTURES)
        raise UserError(
            f"{config.name_or_path}: model type `{config.model_type}` is not supported; use one of {known}."
        )
    if context > config.max_position_embeddings:
        limit = config.max_position_embeddings
        raise UserError(f"{config.name_or_path}: `context` {context} exceeds the model's {limit} positions; lower it.")
