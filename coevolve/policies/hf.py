"""The built-in policy: a causal language model in this process, completing many conversations at once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coevolve.chat.chat_template import Ids, Renderer
from coevolve.policies import loading
from coevolve.policies.base import Completion, Conversation
from coevolve.policies.context import LongPrompt, Window
from coevolve.policies.kv_cache import Engine, Passage, cache_bytes
from coevolve.policies.memory import affordable, batch_of
from coevolve.policies.sampling import choose, uniforms
from coevolve.storage import policy_dir
from coevolve.types import PolicyRef, Sampling

_log = logging.getLogger(__name__)


class TransformersPolicy:
    """Keeps the keys and values of conversations of up to `context` tokens, and completes many at a time.

    It has as many of the `slots` that are asked for as memory holds, and completes half as many at a time; of more
    conversations, the least recently used one is read anew when it comes back.

    A completion is a function of its own conversation: on a CPU the same ids come out whatever stands beside it, in
    whichever slot, cached or not.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        ref: PolicyRef,
        *,
        slots: int,
        context: int,
        long_prompt: LongPrompt,
    ) -> None:
        self.ref = ref
        self.slots = affordable(model, slots, context)
        self._renderer = Renderer(tokenizer)
        self._batch = batch_of(self.slots)
        self._engine = Engine(model, slots=self.slots, batch=self._batch, context=context)
        self._seats = Seats(self.slots)
        megabytes = cache_bytes(model, slots=self.slots, batch=self._batch, context=context) / self.slots / 1e6
        _log.info("keys and values of %d of %d conversations, %.1f MB each", self.slots, slots, megabytes)
        self._window = Window(self._renderer, context, long_prompt)

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        slots: int,
        context: int,
        long_prompt: LongPrompt,
        device: str | None = None,
        dtype: torch.dtype | str = "auto",
    ) -> TransformersPolicy:
        """The policy in the directory `path`, on `device` (None: the GPU if there is one)."""
        ref = policy_dir.describe(path)
        model = loading.load_model(path, dtype).to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        tokenizer = loading.load_tokenizer(path)
        return cls(model, tokenizer, ref, slots=slots, context=context, long_prompt=long_prompt)

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion]:
        """The next action of each conversation, in order, half as many of them at a time as there are slots."""
        seen = [self._window.ids(conversation, sampling.max_new_tokens) for conversation in conversations]
        asked = [(i, ids) for i, ids in enumerate(seen) if ids is not None]
        said: dict[int, Ids] = {}
        for first in range(0, len(asked), self._batch):
            places, group = zip(*asked[first : first + self._batch], strict=True)
            said |= zip(places, self._sample([conversations[i] for i in places], group, sampling), strict=True)
        return [self._window.completion(said.get(i)) for i in range(len(conversations))]

    def forget(self, key: str) -> None:
        """The slot of the episode called `key` is free again."""
        self._seats.leave(key)

    @torch.inference_mode()
    def _sample(self, group: Sequence[Conversation], ids: Sequence[Ids], sampling: Sampling) -> list[Ids]:
        """The sampled ids of each conversation of `group`, whose own ids are `ids`."""
        logits = self._engine.read(self._seats.take([conversation.key for conversation in group], ids))
        chance = self._chance(group, sampling)
        said: list[list[int]] = [[] for _ in group]
        speaking: Sequence[int] = range(len(group))
        for step in range(sampling.max_new_tokens):
            if step:
                logits = self._engine.step({i: (len(ids[i]) + step - 1, said[i][-1]) for i in speaking})
            tokens = choose(logits, sampling, chance[step])
            for i in speaking:
                said[i].append(tokens[i])
            speaking = [i for i in speaking if tokens[i] != self._renderer.end_of_turn]
            if not speaking:
                break
        return [tuple(tokens) for tokens in said]

    def _chance(self, group: Sequence[Conversation], sampling: Sampling) -> NDArray[np.float64]:
        """The uniform numbers of the tokens to come, [max_new_tokens, batch]; greedy decoding needs none."""
        chance = np.zeros((sampling.max_new_tokens, self._batch))
        if sampling.temperature > 0:
            for i, conversation in enumerate(group):
                chance[:, i] = uniforms(conversation.seed, len(conversation.turns), sampling.max_new_tokens)
        return chance


class Seats:
    """Which conversation sits in which slot, and which ids its slot holds, the least recently used one first."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots))
        self._taken: dict[str, tuple[int, Ids]] = {}

    def take(self, keys: Sequence[str], ids: Sequence[Ids]) -> list[Passage]:
        """Seat the conversations `keys`, at most as many as there are slots; returns what each slot has yet to read.

        At least the last id is read again: the logits after it are what the next token is chosen from.
        """
        present = [self._taken.pop(key, None) for key in keys]
        passages = []
        for seat, wanted in zip(present, ids, strict=True):
            slot, held = seat or (self._free_slot(), ())
            start = min(_common(held, wanted), len(wanted) - 1)
            passages.append(Passage(slot, start, wanted[start:]))
        self._taken |= {key: (p.slot, wanted) for key, p, wanted in zip(keys, passages, ids, strict=True)}
        return passages

    def leave(self, key: str) -> None:
        """Free the slot of `key`, if it has one."""
        if key in self._taken:
            self._free.append(self._taken.pop(key)[0])

    def _free_slot(self) -> int:
        if not self._free:
            self.leave(next(iter(self._taken)))
        return self._free.pop()


def _common(left: Ids, right: Ids) -> int:
    """Length of the common beginning."""
    differing = (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)
    return next(differing, min(len(left), len(right)))
