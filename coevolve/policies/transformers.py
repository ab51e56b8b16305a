"""The built-in policy: a causal language model in this process, completing many conversations at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from coevolve.errors import UserError
from coevolve.policies import directory
from coevolve.policies.base import Completion, Conversation
from coevolve.policies.engine import Engine, Passage
from coevolve.policies.sampling import choose, uniforms
from coevolve.render import Ids, Renderer
from coevolve.types import PolicyRef, Sampling

LongPrompt = Literal["end", "cut_left"]


class TransformersPolicy:
    """Keeps the keys and values of `slots` conversations of up to `context` tokens, and completes `batch` at a time.

    A completion is a function of its own conversation: on a CPU the same ids come out whatever stands beside it, in
    whichever slot, cached or not. A conversation whose ids and `max_new_tokens` exceed the context does not fit
    (`long_prompt` "end"), or loses its first tokens ("cut_left"). A turn that is cut off has no end-of-turn token among
    its ids; the renderer writes one before the next observation. By default `batch` is half of `slots`, rounded up: a
    rollout completes one half of its episodes while the environments of the other half step.
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
        batch: int | None = None,
    ) -> None:
        self.ref = ref
        self._renderer = Renderer(tokenizer)
        self._batch = batch or (slots + 1) // 2
        self._engine = Engine(model, slots=slots, batch=self._batch, context=context)
        self._seats = Seats(slots)
        self._context, self._long_prompt = context, long_prompt

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
        ref = directory.describe(path)
        model = directory.load_model(path, dtype).to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        tokenizer = directory.load_tokenizer(path)
        return cls(model, tokenizer, ref, slots=slots, context=context, long_prompt=long_prompt)

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion]:
        """The next action of each conversation, in order, `batch` of them at a time."""
        room = self._context - sampling.max_new_tokens
        if room <= 0:
            raise UserError(
                f"`max_new_tokens` {sampling.max_new_tokens} fills the `context` {self._context}; lower it."
            )
        ids = [self._renderer.conversation_ids(c.prompt, c.turns) for c in conversations]
        fitting = [i for i, own in enumerate(ids) if len(own) <= room or self._long_prompt == "cut_left"]
        completions = [Completion(text="", fits=False)] * len(conversations)
        for first in range(0, len(fitting), self._batch):
            group = fitting[first : first + self._batch]
            said = self._sample([conversations[i] for i in group], [ids[i][-room:] for i in group], sampling)
            for i, tokens in zip(group, said, strict=True):
                completions[i] = self._completion(tokens)
        return completions

    def forget(self, key: str) -> None:
        """The slot of the episode called `key` is free again."""
        self._seats.leave(key)

    def _completion(self, tokens: Ids) -> Completion:
        truncated = tokens[-1] != self._renderer.end_of_turn
        return Completion(text=self._renderer.decode(tokens), token_ids=tokens, truncated=truncated)

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
