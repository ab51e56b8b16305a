"""Prefill and decode passes of a decoder over many conversations, with their KV cache.

The tokens of a pass, of any conversations, lie in one row without padding, [1, N, hidden]. Linear layers run over
numbers of tokens that give equal bits (`exact_shapes.exact_rows`), and attention over one conversation at a time:
chunks of CHUNK prompt tokens over numbers of positions that give equal bits (`exact_spans`), or one decoded token over
the positions up to its own. So the keys and values of a prompt depend on its token ids alone; those of decoded tokens
have other bits, and the next turn's prefill overwrites them. What prompts begin with alike is computed once.

On a GPU, where bits are not promised, passes are longer, and attention runs over all conversations of a pass at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import AttentionInterface

from coevolve.errors import UserError
from coevolve.policies.context import common_prefix
from coevolve.policies.exact_shapes import RowFunction, attend, exact_rows, exact_spans, shortest

#: Tokens of a prefill pass, and tokens of a conversation that attend together.
PREFILL_TOKENS, CHUNK = 256, 32
#: The same on a GPU, which takes as long for a short pass as for a long one.
LONG_PREFILL_TOKENS, LONG_CHUNK = 8192, 256
#: Logits have the same bits with any number of slots up to this one.
EQUAL_SLOTS = 64
_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_ATTENTION = "cached_conversations"

#: Places in a pass, slots and positions, [T] each.
Targets = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Prefill:
    """The token ids of a prompt, to be held by `slot`; the first `start` of them are held by the slot `source`."""

    slot: int
    source: int
    start: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class TokenRun:
    """Token ids to write to each of some `slots`, from position `start` on. The slots hold the same ids before it."""

    slots: tuple[int, ...]
    start: int
    ids: tuple[int, ...]

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.start + len(self.ids)


class KeyValueCache:
    """Keys and values of all slots, [2, slots + 1, heads, width, head_dim] per layer; the last slot takes padding.

    Takes the place of transformers' `Cache`; decoders call only its `update`. Before a pass, set `targets`: the tokens
    to write, by their place in the pass, and the slot and position that each goes to, [T] each.
    """

    def __init__(self, model: Any, slots: int, width: int, device: torch.device | str) -> None:
        config = model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (2, slots + 1, config.num_key_value_heads, width, head_dim)
        self.states = [torch.zeros(shape, device=device, dtype=model.dtype) for _ in range(config.num_hidden_layers)]
        self.targets: Targets

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values [1, heads, N, head_dim]; returns those of all slots, [slots + 1, heads, width, ...]."""
        states, (tokens, slots, positions) = self.states[layer_idx], self.targets
        states[0, slots, :, positions] = key_states[0, :, tokens].transpose(0, 1)
        states[1, slots, :, positions] = value_states[0, :, tokens].transpose(0, 1)
        return states[0], states[1]

    def copy(self, source: int, slot: int, length: int) -> None:
        """Write the keys and values of the first `length` positions of the slot `source` to `slot`."""
        for states in self.states:
            states[:, slot, :, :length] = states[:, source, :, :length]


@dataclass(frozen=True)
class TokenSegment:
    """Tokens of a pass that attend together: `count` of a conversation, the first of them at `start` in its slot.

    They are written to all `slots`, which hold the same tokens before, and attend to the first `span` positions of the
    first slot; `mask` [1, 1, C, span] for as many tokens as the kernel gets, None for a single token that attends to
    all of them.
    """

    slots: tuple[int, ...]
    start: int
    count: int
    span: int
    mask: torch.Tensor | None = None


@dataclass(frozen=True)
class PaddedRows:
    """The segments of a pass as one call of attention: R rows of C queries over the first positions of a slot each.

    `index` [N]: where each token of the pass stands among the R * C queries. `slots` [R], `mask` [R, 1, C, span].
    """

    index: torch.Tensor
    slots: torch.Tensor
    mask: torch.Tensor

    @classmethod
    def of(cls, segments: Sequence[TokenSegment], device: torch.device) -> PaddedRows:
        """The rows of these segments, made once for all layers."""
        queries, longest = (max(sizes) for sizes in zip(*((s.count, s.span) for s in segments), strict=True))
        span = -(-longest // CHUNK) * CHUNK  # kernels want rows of a mask that are aligned
        index = [row * queries + i for row, segment in enumerate(segments) for i in range(segment.count)]
        slots = [segment.slots[0] for segment in segments]
        mask = _causal([segment.start for segment in segments], queries, span, device)
        return cls(torch.tensor(index, device=device), torch.tensor(slots, device=device), mask)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float) -> torch.Tensor:
        """Attention of the queries [1, heads, N, head_dim] to the keys and values of all slots; [1, N, heads, ...]."""
        rows, _, queries, span = self.mask.shape
        tokens = query[0].transpose(0, 1)
        padded = tokens.new_zeros((rows * queries, *tokens.shape[1:]))
        padded[self.index] = tokens
        keys, values = key[self.slots, :, :span], value[self.slots, :, :span]
        attended = attend(
            padded.view(rows, queries, *tokens.shape[1:]).transpose(1, 2), keys, values, self.mask, scaling
        )
        return attended.transpose(1, 2).flatten(0, 1)[self.index].unsqueeze(0)


class CachedDecoder:
    """A model with KV caches for `slots` conversations of `context` tokens; `UserError` if it does not support them.

    `exact`: whether bits do not depend on the batch (None: on a CPU).
    """

    def __init__(self, model: Any, *, slots: int, context: int, exact: bool | None = None) -> None:
        _check_model(model.config, context)
        AttentionInterface.register(_ATTENTION, _attend_segments)
        self._decoder, self._head = model.base_model, model.get_output_embeddings()
        self._slots, width = slots, _padded_width(context)
        self._cache = KeyValueCache(model, slots, width, model.device)
        self._exact = model.device.type == "cpu" if exact is None else exact
        self._chunk, self._longest = (CHUNK, PREFILL_TOKENS) if self._exact else (LONG_CHUNK, LONG_PREFILL_TOKENS)
        self.rows: Sequence[int] = range(max(self._longest, slots) + 1)
        self.head_rows: Sequence[int] = self.rows
        self.spans: Sequence[int] = range(CHUNK, width + 1, CHUNK)
        if self._exact:
            self._find_exact_shapes(width)

    @torch.inference_mode()
    def _find_exact_shapes(self, width: int) -> None:
        """Keep the numbers of tokens and of positions that give equal bits."""
        like, layer = self._head.weight[:0], self._decoder.layers[0]
        self.rows = exact_rows(_row_functions(layer), max(self._longest, self._slots), like)
        self.head_rows = exact_rows([(self._head, self._head.in_features)], max(EQUAL_SLOTS, self._slots), like)
        heads, head_dim = self._cache.states[0].shape[2::2]
        every = (layer.self_attn.num_key_value_groups * heads, heads)
        self.spans = exact_spans(every, head_dim, width, CHUNK, layer.self_attn.scaling, like)

    def prefill(self, prefills: Sequence[Prefill]) -> torch.Tensor:
        """Write prompts to their slots; returns the logits after each one's last token, [R, V].

        All copies come before all writes, in order: a `source` may be the slot of a later prefill.
        """
        for prefill in prefills:
            if prefill.source != prefill.slot:
                self._cache.copy(prefill.source, prefill.slot, prefill.start)
        rows = {(prefill.slot, len(prefill.ids)): row for row, prefill in enumerate(prefills)}
        last: dict[int, torch.Tensor] = {}
        chunks = [chunk for run in shared_runs(prefills) for chunk in _chunks(run, self._chunk)]
        # A slot's earlier chunk comes before its later one, or into the same pass.
        chunks.sort(key=lambda chunk: chunk.start)
        for batch in _passes(chunks, self._longest):
            hidden = self._forward(list(map(self._segment, batch)), [token for chunk in batch for token in chunk.ids])
            end = 0
            for chunk in batch:
                end += len(chunk.ids)
                last |= {rows[slot, chunk.end]: hidden[end - 1] for slot in chunk.slots if (slot, chunk.end) in rows}
        return self._logits(torch.stack([last[row] for row in range(len(prefills))]))

    def decode(self, tokens: Mapping[int, tuple[int, int]]) -> torch.Tensor:
        """Append one token to some slots, `tokens`: slot to (position, id); returns the next logits, [R, V]."""
        segments = [TokenSegment((slot,), position, 1, position + 1) for slot, (position, _) in tokens.items()]
        return self._logits(self._forward(segments, [token for _, token in tokens.values()]))

    def _segment(self, chunk: TokenRun) -> TokenSegment:
        span = shortest(self.spans, chunk.end)
        mask = _causal([chunk.start], CHUNK, span, self._head.weight.device) if self._exact else None
        return TokenSegment(chunk.slots, chunk.start, len(chunk.ids), span, mask)

    def _forward(self, segments: Sequence[TokenSegment], ids: Sequence[int]) -> torch.Tensor:
        """Hidden states [N, hidden] of the tokens `ids` of the segments; layers write all keys before they attend."""
        padding, device = shortest(self.rows, len(ids)) - len(ids), self._head.weight.device
        positions = [p for s in segments for p in range(s.start, s.start + s.count)] + [0] * padding
        at = torch.tensor([positions, [*ids, *[0] * padding]], device=device)
        self._cache.targets = self._targets(segments, padding)
        with _attention_of(self._decoder.config):
            hidden: torch.Tensor = self._decoder(
                input_ids=at[1:],
                attention_mask=at.new_zeros((1, 1, 1, 1)),  # has four dimensions: no other is made
                position_ids=at[:1],
                past_key_values=self._cache,
                use_cache=True,
                segments=segments if self._exact else PaddedRows.of(segments, device),
            ).last_hidden_state
        return hidden[0, : len(ids)]

    def _targets(self, segments: Sequence[TokenSegment], padding: int) -> Targets:
        """`KeyValueCache.targets` of segments, and of `padding` tokens behind them."""
        targets, first = [], 0
        for segment in segments:
            targets += [(first + i, slot, segment.start + i) for slot in segment.slots for i in range(segment.count)]
            first += segment.count
        targets += [(first + i, self._slots, 0) for i in range(padding)]
        tokens, slots, positions = torch.tensor(targets, device=self._head.weight.device).unbind(1)
        return tokens, slots, positions

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, V] after the hidden states [R, hidden]."""
        padding = shortest(self.head_rows, len(hidden)) - len(hidden)
        logits: torch.Tensor = self._head(pad(hidden, (0, 0, 0, padding)))
        return logits[: len(hidden)]


def cache_bytes(model: Any, *, slots: int, context: int) -> int:
    """Bytes of the KV cache of a `CachedDecoder` of this shape."""
    return sum(states.nbytes for states in KeyValueCache(model, slots, _padded_width(context), "meta").states)


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
    segments: Sequence[TokenSegment] | PaddedRows,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls, with all slots: from [1, heads, N, dim] to [1, N, heads, dim]."""
    if isinstance(segments, PaddedRows):
        return segments.attend(query, key, value, scaling), None
    attended, first = [], 0
    for segment in segments:
        tokens = query[:, :, first : first + segment.count]
        if segment.mask is not None:
            tokens = pad(tokens, (0, 0, 0, segment.mask.shape[2] - segment.count))
        keys, values = (kept[segment.slots[0], None, :, : segment.span] for kept in (key, value))
        attended.append(attend(tokens, keys, values, segment.mask, scaling)[:, :, : segment.count])
        first += segment.count
    return pad(torch.cat(attended, dim=2), (0, 0, 0, query.shape[2] - first)).transpose(1, 2), None


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


def _padded_width(context: int) -> int:
    """Positions of a slot: `context` rounded up to a multiple of CHUNK."""
    return -(-context // CHUNK) * CHUNK


def shared_runs(prefills: Sequence[Prefill]) -> Iterator[TokenRun]:
    """What the prefills have to write, each token that several of them begin with once."""
    groups: dict[Any, list[Prefill]] = {}
    for prefill in prefills:
        groups.setdefault((prefill.start, prefill.ids[: prefill.start]), []).append(prefill)
    for group in groups.values():
        yield from _runs(group, group[0].start)


def _runs(group: Sequence[Prefill], start: int) -> Iterator[TokenRun]:
    """The runs of prefills with equal token ids before `start`: by their next token, then as long as they agree."""
    branches: dict[int, list[Prefill]] = {}
    for prefill in group:
        if len(prefill.ids) > start:
            branches.setdefault(prefill.ids[start], []).append(prefill)
    for branch in branches.values():
        prompts = [prefill.ids for prefill in branch]
        end = common_prefix(min(prompts), max(prompts))
        yield TokenRun(tuple(prefill.slot for prefill in branch), start, prompts[0][start:end])
        yield from _runs(branch, end)


def _chunks(run: TokenRun, length: int) -> Iterator[TokenRun]:
    for offset in range(0, len(run.ids), length):
        yield TokenRun(run.slots, run.start + offset, run.ids[offset : offset + length])


def _passes(chunks: Sequence[TokenRun], longest: int) -> Iterator[list[TokenRun]]:
    """The chunks in order, in passes of at most `longest` tokens."""
    batch: list[TokenRun] = []
    for chunk in chunks:
        if sum(len(c.ids) for c in (*batch, chunk)) > longest:
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
    rope = getattr(config, "rope_parameters", None) or {}
    # transformers scales all positions of a pass by the longest conversation in it.
    if rope.get("rope_type") == "longrope" and context > rope["original_max_position_embeddings"]:
        limit = rope["original_max_position_embeddings"]
        raise UserError(
            f"{config.name_or_path}: with `longrope`, `context` is at most {limit}, not {context}; lower it."
        )
    if context > config.max_position_embeddings:
        limit = config.max_position_embeddings
        raise UserError(f"{config.name_or_path}: `context` {context} exceeds the model's {limit} positions; lower it.")
