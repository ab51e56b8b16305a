"""The built-in policy: a transformers model in this process that completes many conversations at once."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coevolve.chat.chat_template import Ids, Renderer
from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.policies.base import Completion, Conversation, EngineSettings
from coevolve.policies.context import ContextWindow, common_prefix
from coevolve.policies.kv_cache import CachedDecoder, Prefill, cache_bytes
from coevolve.policies.sampling import choose, logps_of, uniforms
from coevolve.records.episodes import PolicyRef, Sampling
from coevolve.settings.protocol import LongPrompt
from coevolve.storage import policy_dir

_log = logging.getLogger(__name__)

#: Shares of free memory that KV caches may use: a GPU also needs room for activations, a CPU for other programs.
GPU_SHARE, CPU_SHARE = 0.8, 0.5


def player(folder: Path, settings: EngineSettings) -> tuple[TransformersPolicy, int]:
    """The policy in a directory, and the number of environments: the workers, or the conversations it can hold."""
    policy = TransformersPolicy.load(
        folder,
        slots=settings.workers,
        context=settings.context,
        long_prompt=settings.long_prompt,
        dtype=loading.compute_dtype(settings.dtype),
    )
    return policy, min(settings.workers, policy.slots)


class TransformersPolicy:
    """Completes conversations of up to `context` tokens in batches and keeps their KV cache between turns.

    `slots` limits the number of cached conversations, and of those completed at once; fewer are allocated if memory
    does not suffice. If all are taken, the least recently used conversation is prefilled again at its next turn. On a
    CPU the token ids of a completion are the same for every batch, slot and state of the cache, but not in float32 and
    bfloat16, on all machines, or for all numbers of threads. `logps`: keep log-probs of sampled tokens, for sampling
    at temperature 1.
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
        logps: bool = False,
    ) -> None:
        self.ref, self._keeps_logps = ref, logps
        self.slots = affordable_slots(model, slots, context)
        self._renderer = Renderer(tokenizer)
        self._decoder = CachedDecoder(model, slots=self.slots, context=context)
        self._table = SlotTable(self.slots)
        megabytes = cache_bytes(model, slots=self.slots, context=context) / self.slots / 1e6
        _log.info("KV cache for %d of %d conversations, %.1f MB each", self.slots, slots, megabytes)
        self._window = ContextWindow(self._renderer, context, long_prompt)

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
        if model.device.type == "cpu":
            loading.transpose_weights(model)
        tokenizer = loading.load_tokenizer(path)
        return cls(model, tokenizer, ref, slots=slots, context=context, long_prompt=long_prompt)

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion]:
        """The next action of each conversation, in order; raises `UserError` for logits that are not finite."""
        prompts = [self._window.prompt_ids(conversation, sampling.max_new_tokens) for conversation in conversations]
        fitting = [(i, ids) for i, ids in enumerate(prompts) if ids is not None]
        sampled: dict[int, tuple[Ids, tuple[float, ...]]] = {}
        for first in range(0, len(fitting), self.slots):
            indices, ids = zip(*fitting[first : first + self.slots], strict=True)
            sampled |= zip(indices, self._sample([conversations[i] for i in indices], ids, sampling), strict=True)
        return [self._window.completion(*sampled.get(i, (None,))) for i in range(len(conversations))]

    def forget(self, key: str) -> None:
        """Free the slot of the episode `key`."""
        self._table.release(key)

    @torch.inference_mode()
    def _sample(
        self, batch: Sequence[Conversation], prompts: Sequence[Ids], sampling: Sampling
    ) -> list[tuple[Ids, tuple[float, ...]]]:
        """The sampled token ids of each conversation of `batch`, and their log-probs if they are kept.

        `prompts` are the conversations' token ids so far.
        """
        prefills = self._table.assign([conversation.key for conversation in batch], prompts)
        logits = self._decoder.prefill(prefills)
        seeded = [uniforms(each.seed, len(each.turns), sampling.max_new_tokens) for each in batch]
        uniform = np.stack(seeded, axis=1)  # [max_new_tokens, R]
        sampled: list[list[int]] = [[] for _ in batch]
        logps: list[list[float]] = [[] for _ in batch]
        active = list(range(len(batch)))
        for step in range(sampling.max_new_tokens):
            if step:
                logits = self._decoder.decode(
                    {prefills[i].slot: (len(prefills[i].ids) + step - 1, sampled[i][-1]) for i in active}
                )
            if not logits.sum(dtype=torch.float32).isfinite():
                problem = f"policy `{self.ref.name}`: its logits are not finite"
                raise UserError(f"{problem}; train it with a lower `learning_rate`, or set another `sampler.dtype`.")
            tokens = choose(logits, sampling, uniform[step, active])
            for i, token in zip(active, tokens, strict=True):
                sampled[i].append(token)
            if self._keeps_logps:
                for i, logp in zip(active, logps_of(logits, tokens), strict=True):
                    logps[i].append(logp)
            active = [i for i in active if sampled[i][-1] != self._renderer.end_of_turn]
            if not active:
                break
        return [(tuple(tokens), tuple(kept)) for tokens, kept in zip(sampled, logps, strict=True)]


class SlotTable:
    """The slot of each cached conversation, the least recently used first, and the token ids in each slot."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots))
        self._used: dict[str, int] = {}
        self._held: list[Ids] = [()] * slots

    def assign(self, keys: Sequence[str], prompts: Sequence[Ids]) -> list[Prefill]:
        """Give slots to at most as many conversations; one token of a prompt at least is left for the logits."""
        present = [self._used.pop(key, None) for key in keys]
        sources, prefills = dict(enumerate(self._held)), []
        for kept, ids in zip(present, prompts, strict=True):
            slot = source = self._free_slot() if kept is None else kept
            if kept is None:
                source = max(sources, key=lambda other: (common_prefix(sources[other], ids), other == slot))
                sources.pop(slot)  # other tokens are copied into it before later prefills could copy from it
            start = min(common_prefix(self._held[source], ids), len(ids) - 1)
            prefills.append(Prefill(slot, source, start, ids))
        for key, prefill in zip(keys, prefills, strict=True):
            self._used[key], self._held[prefill.slot] = prefill.slot, prefill.ids
        return prefills

    def release(self, key: str) -> None:
        """Free the slot of the conversation `key`, if it has one; other conversations can still copy from it."""
        if key in self._used:
            self._free.append(self._used.pop(key))

    def _free_slot(self) -> int:
        if not self._free:
            self.release(next(iter(self._used)))
        return self._free.pop(0)  # the one whose tokens have been there longest


def affordable_slots(model: Any, slots: int, context: int, budget: int | None = None) -> int:
    """The largest number of slots up to `slots` whose caches take at most `budget` bytes; at least 1.

    None: a share of the free memory of the model's device; raises `UserError` if one cache exceeds all of it.
    """
    if budget is None:
        share, free = GPU_SHARE if model.device.type == "cuda" else CPU_SHARE, free_bytes(model.device)
        budget = int(share * free)
        if (needed := cache_bytes(model, slots=1, context=context)) > free:
            problem = f"the KV cache of a conversation of {context} tokens takes {needed / 1e9:.3g} GB"
            fix = f"set the model's `context` (evaluate-model: `--context`) to at most {context * budget // needed}"
            raise UserError(f"{problem}, and {free / 1e9:.3g} GB are free; {fix}.")
    padding = cache_bytes(model, slots=0, context=context)  # as much as a slot
    return max(1, min(slots, budget // padding - 1))


def free_bytes(device: torch.device) -> int:
    """Free memory in bytes: a GPU's with what torch does not use (not run here), else what control groups leave."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    available = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    limits = _cgroup_free_bytes(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return min([1024 * int(available[1]) if available else 0, *limits])


def _cgroup_free_bytes(cgroup_file: Path, root: Path) -> Iterator[int]:
    """Bytes left to the process by its control group and each parent group that has a limit (cgroup v2)."""
    group = re.search(r"^0::/(.*)$", cgroup_file.read_text() if cgroup_file.exists() else "", re.MULTILINE)
    for folder in [root / group[1], *(root / group[1]).parents] if group else []:
        limit, current = folder / "memory.max", folder / "memory.current"
        if limit.exists() and current.exists() and (maximum := limit.read_text().strip()) != "max":
            yield int(maximum) - int(current.read_text()) + _file_cache(folder / "memory.stat")


def _file_cache(stat: Path) -> int:
    """Bytes of files that a control group keeps in memory and gives up where memory is needed."""
    text = stat.read_text() if stat.exists() else ""
    return sum(int(size) for size in re.findall(r"^(?:in)?active_file (\d+)$", text, re.MULTILINE))
