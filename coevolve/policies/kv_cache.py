"""A decoder's forward passes over many conversations, with their keys and values kept.

The last bits of a row of a matrix product depend on the product's shape, and on nothing in its other rows. So every
pass has one of two shapes, whoever takes part: reading takes [LANES, CHUNK] tokens, stepping [batch, 1], and attention
spans only numbers of positions that give the same bits (`coevolve.policies.attention_spans`). What has been read stays
on the shelf, a function of the ids alone, to the bit. To step, conversations are copied to the desk; what is
stepped through there is forgotten, and read again with the next turn.
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

LANES = 8
CHUNK = 32
_ARCHITECTURES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True)
class Passage:
    """Token ids to be put into a slot from position `start` on."""

    slot: int
    start: int
    ids: tuple[int, ...]


class Shelf:
    """Keys and values of all slots, [2, slots + 1, heads, width, dim] per layer; the last slot takes padding.

    Stands in a reading pass for transformers' cache, of which decoders call nothing but `update`. The pass is aimed
    first: `targets` are the slot and the position of each of its tokens, `rows` the slots its lanes attend to, over
    `span` positions, one of `spans`.
    """

    def __init__(self, decoder: Any, layers: int, shape: tuple[int, ...]) -> None:
        kind = {"device": decoder.device, "dtype": decoder.dtype}
        self.kept = [torch.zeros((2, *shape), **kind) for _ in range(layers)]
        self._seen = torch.zeros((2, LANES, *shape[1:]), **kind)
        self.spans = exact_spans(decoder.layers[0].self_attn, (LANES, *shape[1:]), CHUNK, **kind)
        self.targets: tuple[torch.Tensor, torch.Tensor]
        self.rows: Sequence[int] = ()
        self.span = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep the pass's keys and values [R, heads, C, dim]; returns all that its lanes see [R, heads, span, dim]."""
        _keep(self.kept[layer_idx], self.targets, key_states, value_states)
        _gather(self._seen, self.kept[layer_idx], self.rows, self.span)
        keys, values = self._seen[:, :, :, : self.span]
        return keys, values


class Desk:
    """Working copies of the keys and values of up to `batch` slots, [2, batch, heads, width, dim] per layer.

    Stands in a stepping pass for transformers' cache; its lanes are in order, so nothing is gathered.
    """

    def __init__(self, decoder: Any, shelf: Shelf, batch: int) -> None:
        self._shelf = shelf
        self._held = [torch.zeros_like(kept[:, :batch]) for kept in shelf.kept]
        shape = tuple(self._held[0].shape[1:])
        self.spans = exact_spans(decoder.layers[0].self_attn, shape, 1, device=decoder.device, dtype=decoder.dtype)
        self.targets: tuple[torch.Tensor, torch.Tensor]
        self.span = 0

    def fetch(self, slots: Sequence[int], length: int) -> None:
        """Copy the first `length` positions of `slots` to the first lanes."""
        for held, kept in zip(self._held, self._shelf.kept, strict=True):
            _gather(held, kept, slots, length)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep the pass's keys and values [batch, heads, 1, dim]; returns all that its lanes see."""
        _keep(self._held[layer_idx], self.targets, key_states, value_states)
        keys, values = self._held[layer_idx][:, :, :, : self.span]
        return keys, values


class Engine:
    """Up to `slots` conversations of up to `context` tokens under one model, `batch` of them stepping at a time."""

    def __init__(self, model: Any, *, slots: int, batch: int, context: int) -> None:
        _check(model.config, context)
        self._decoder, self._head = model.base_model, model.get_output_embeddings()
        self._slots, self._batch, self._width = slots, batch, _width(context)
        self._device = model.device
        self._shelf = Shelf(self._decoder, *_layout(model.config, slots + 1, self._width))
        self._desk = Desk(self._decoder, self._shelf, batch)
        self._positions = torch.arange(self._width, device=model.device)
        self._open, self._blocked = torch.tensor([0.0, -torch.inf], device=model.device, dtype=model.dtype)

    def read(self, passages: Sequence[Passage]) -> torch.Tensor:
        """Put up to `batch` passages into their slots; returns the logits after each one's last token, [batch, V].

        Lane i of the desk then holds the slot of passage i, for `step`.
        """
        lanes = {passage.slot: lane for lane, passage in enumerate(passages)}
        chunks = sorted((chunk for passage in passages for chunk in _chunks(passage)), key=lambda chunk: chunk.start)
        final = self._head.weight.new_zeros(self._batch, self._head.in_features)
        for first in range(0, len(chunks), LANES):
            pack = chunks[first : first + LANES]
            hidden = self._read_pack(pack)
            for row, chunk in enumerate(pack):
                final[lanes[chunk.slot]] = hidden[row, len(chunk.ids) - 1]
        longest = max(passage.start + len(passage.ids) for passage in passages)
        self._desk.fetch(list(lanes), longest)
        return self._logits(final)

    def step(self, tokens: Mapping[int, tuple[int, int]]) -> torch.Tensor:
        """Add one token to some lanes, `tokens` maps them to (position, id); returns the next logits, [batch, V]."""
        ids, positions = np.zeros((2, self._batch, 1), dtype=np.int64)
        for lane, (position, token) in tokens.items():
            ids[lane], positions[lane] = token, position
        return self._logits(self._forward(self._desk, ids, positions, np.arange(self._batch)[:, None])[:, 0])

    def _read_pack(self, pack: Sequence[Passage]) -> torch.Tensor:
        """Hidden states [LANES, CHUNK, hidden] of up to LANES chunks; a slot's later chunk sees its earlier one."""
        ids, positions = np.zeros((2, LANES, CHUNK), dtype=np.int64)
        slots = np.full((LANES, CHUNK), self._slots)
        for row, chunk in enumerate(pack):
            taken = slice(len(chunk.ids))
            ids[row, taken], slots[row, taken] = chunk.ids, chunk.slot
            positions[row, taken] = np.arange(chunk.start, chunk.start + len(chunk.ids))
        self._shelf.rows = [int(slot) for slot in slots[:, 0]]
        return self._forward(self._shelf, ids, positions, slots)

    def _forward(self, cache: Shelf | Desk, ids: Array, positions: Array, rows: Array) -> torch.Tensor:
        """Hidden states [R, C, hidden] of the tokens `ids` [R, C], kept at `rows` and `positions` of `cache`."""
        place = self._tensor(positions)
        cache.targets = self._tensor(rows), place
        cache.span = shortest(cache.spans, int(positions.max()) + 1)
        visible = self._positions[: cache.span] <= place[:, None, :, None]
        hidden: torch.Tensor = self._decoder(
            input_ids=self._tensor(ids),
            attention_mask=torch.where(visible, self._open, self._blocked),
            position_ids=place,
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
    """Bytes of the keys and values that an engine of this shape holds, on its shelf and its desk."""
    layers, (_, *lane) = _layout(model.config, 1, _width(context))
    states: int = model.dtype.itemsize * 2 * math.prod(lane)
    return states * (layers * (slots + 1 + batch) + LANES)


def _keep(
    states: torch.Tensor, targets: tuple[torch.Tensor, torch.Tensor], keys: torch.Tensor, values: torch.Tensor
) -> None:
    """Write `keys` and `values` [R, heads, C, dim] to rows and positions `targets` (each [R, C]) of `states`."""
    rows, positions = targets
    states[0, rows, :, positions] = keys.transpose(1, 2)
    states[1, rows, :, positions] = values.transpose(1, 2)


def _gather(into: torch.Tensor, states: torch.Tensor, rows: Sequence[int], length: int) -> None:
    """Copy the first `length` positions of the `rows` of `states` to the first rows of `into`."""
    for lane, row in enumerate(rows):
        into[:, lane, :, :length] = states[:, row, :, :length]


def _layout(config: Any, rows: int, width: int) -> tuple[int, tuple[int, ...]]:
    """Number of layers, and the shape of the keys of one: [rows, heads, width, dim]."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return config.num_hidden_layers, (rows, config.num_key_value_heads, width, head_dim)


def _width(context: int) -> int:
    """Positions of a slot: `context`, rounded up to whole chunks."""
    return -(-context // CHUNK) * CHUNK


def _chunks(passage: Passage) -> Iterator[Passage]:
    for offset in range(0, len(passage.ids), CHUNK):
        yield Passage(passage.slot, passage.start + offset, passage.ids[offset : offset + CHUNK])


def _check(config: Any, context: int) -> None:
    """Raises `UserError` for a model whose passes this engine cannot make."""
    if config.model_type not in _ARCHITECTURES or set(getattr(config, "layer_types", None) or ()) - {"full_attention"}:
        known = ", ".join(_ARCHITECTURES)
        raise UserError(
            f"{config.name_or_path}: model type `{config.model_type}` is not supported; use one of {known}."
        )
    if context > config.max_position_embeddings:
        limit = config.max_position_embeddings
        raise UserError(f"{config.name_or_path}: `context` {context} exceeds the model's {limit} positions; lower it.")
