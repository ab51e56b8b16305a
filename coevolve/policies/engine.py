"""A decoder's forward passes over many conversations, with their keys and values kept.

The last bits of a row of a matrix product depend on the product's shape, and on nothing in its other rows. So every
pass has one of two shapes, whoever takes part: reading takes [LANES, CHUNK] tokens, stepping [slots, 1], and attention
always spans `width` positions. What has been read is then a function of the ids alone, to the bit; what was stepped
through is forgotten, and read again with the next turn. On a GPU, where no such promise is made, attention spans only
the positions in use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coevolve.errors import UserError

LANES = 4
CHUNK = 64
_GROWTH = 256  # attention spans a multiple of this many positions
_ARCHITECTURES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True)
class Passage:
    """Token ids to be put into a slot from position `start` on."""

    slot: int
    start: int
    ids: tuple[int, ...]


class SlotCache:
    """Keys and values of all slots, [(slots + 1) * width, heads, dim] per layer; the last slot takes what nobody needs.

    A pass is aimed before it is made: `targets` says where its tokens go, `rows` which slots its lanes attend to (None:
    lane i to slot i), `span` over how many positions. Of transformers' cache protocol a decoder uses `update` alone.
    """

    def __init__(self, config: Any, slots: int, width: int, device: torch.device, dtype: torch.dtype) -> None:
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (2, (slots + 1) * width, config.num_key_value_heads, head_dim)
        self._kept = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_hidden_layers)]
        self._slots, self._width = slots, width
        self.targets: torch.Tensor
        self.rows: torch.Tensor | None = None
        self.span = width

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep the pass's keys and values [R, heads, C, dim]; returns all that its lanes see [R, heads, span, dim]."""
        keys, values = self._kept[layer_idx]
        return self._store(keys, key_states), self._store(values, value_states)

    def _store(self, kept: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        kept.index_copy_(0, self.targets, states.transpose(1, 2).flatten(0, 1))
        by_slot = kept.view(self._slots + 1, self._width, *kept.shape[1:])[:, : self.span]
        seen = by_slot[: self._slots] if self.rows is None else by_slot.index_select(0, self.rows)
        return seen.transpose(1, 2)


class Engine:
    """`slots` conversations of up to `context` tokens each under one model."""

    def __init__(self, model: Any, slots: int, context: int) -> None:
        _check(model.config, context)
        self._decoder, self._head = model.base_model, model.get_output_embeddings()
        self._slots, self._width = slots, -(-context // CHUNK) * CHUNK
        self._device, self._dtype = model.device, model.dtype
        self._bitwise = model.device.type == "cpu"
        self._cache = SlotCache(model.config, slots, self._width, model.device, model.dtype)
        self._positions = torch.arange(self._width, device=model.device)
        self._blocked = torch.tensor(-torch.inf, device=model.device, dtype=model.dtype)
        self._open = torch.zeros_like(self._blocked)

    def read(self, passages: Sequence[Passage]) -> torch.Tensor:
        """Put `passages` (one per slot) into the cache; returns the logits after each one's last token, [slots, V]."""
        chunks = [chunk for passage in passages for chunk in _chunks(passage)]
        final = torch.zeros((self._slots, self._decoder.config.hidden_size), device=self._device, dtype=self._dtype)
        for first in range(0, len(chunks), LANES):
            pack = chunks[first : first + LANES]
            hidden = self._read_pack(pack)
            for lane, chunk in enumerate(pack):
                final[chunk.slot] = hidden[lane, len(chunk.ids) - 1]
        return self._logits(final)

    def step(self, tokens: Mapping[int, tuple[int, int]]) -> torch.Tensor:
        """Add one token to some slots, `tokens` maps them to (position, id); returns the next logits, [slots, V]."""
        ids, positions = np.zeros((2, self._slots, 1), dtype=np.int64)
        targets = np.full(self._slots, self._slots * self._width, dtype=np.int64)
        for slot, (position, token) in tokens.items():
            ids[slot], positions[slot], targets[slot] = token, position, slot * self._width + position
        return self._logits(self._forward(ids, positions, targets, rows=None)[:, 0])

    def _read_pack(self, pack: Sequence[Passage]) -> torch.Tensor:
        """Hidden states [LANES, CHUNK, hidden] of up to LANES chunks; a slot's later chunk sees its earlier one."""
        ids, positions = np.zeros((2, LANES, CHUNK), dtype=np.int64)
        targets = np.full((LANES, CHUNK), self._slots * self._width, dtype=np.int64)
        rows = np.full(LANES, self._slots, dtype=np.int64)
        for lane, chunk in enumerate(pack):
            place = np.arange(chunk.start, chunk.start + len(chunk.ids))
            ids[lane, : len(place)], positions[lane, : len(place)] = chunk.ids, place
            targets[lane, : len(place)], rows[lane] = chunk.slot * self._width + place, chunk.slot
        return self._forward(ids, positions, targets.ravel(), rows)

    def _forward(
        self,
        ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        targets: NDArray[np.int64],
        rows: NDArray[np.int64] | None,
    ) -> torch.Tensor:
        """Hidden states [R, C, hidden] of the tokens `ids` [R, C]."""
        self._cache.targets = self._tensor(targets)
        self._cache.rows = None if rows is None else self._tensor(rows)
        self._cache.span = self._span(int(positions.max()))
        place = self._tensor(positions)
        visible = self._positions[: self._cache.span] <= place[:, None, :, None]
        hidden: torch.Tensor = self._decoder(
            input_ids=self._tensor(ids),
            attention_mask=torch.where(visible, self._open, self._blocked),
            position_ids=place,
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state
        return hidden

    def _span(self, last: int) -> int:
        if self._bitwise:
            return self._width
        return min(self._width, -(-(last + 1) // _GROWTH) * _GROWTH)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._head(hidden)
        return logits

    def _tensor(self, array: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


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
