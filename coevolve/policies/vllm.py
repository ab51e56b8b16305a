"""vLLM as a policy: its engine runs in this process and batches the conversations."""

from __future__ import annotations

import gc
import importlib
import itertools
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from coevolve import seeds
from coevolve.chat.chat_template import Ids, Renderer
from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.policies.base import Completion, ContinuousPolicy, Conversation, EngineSettings
from coevolve.policies.checkpoint import require_whole
from coevolve.policies.context import ContextWindow, common_prefix
from coevolve.records.episodes import PolicyRef, Sampling
from coevolve.settings.protocol import LongPrompt
from coevolve.storage import policy_dir

_log = logging.getLogger(__name__)
Request = TypeVar("Request")


class AdmissionQueue(Generic[Request]):
    """Requests for the next turns of conversations that share a cache of `capacity` tokens.

    The conversations of the oldest episodes are held, as many as the cache has room for; a later one waits until it is
    among them. If all took turns in a cache that is too small, an engine that evicts what was least recently used
    would evict each before its next turn. What runs already may go on when an older conversation grows.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._tokens: dict[str, int] = {}  # the oldest episode first
        self._waiting: dict[str, Request] = {}

    def add(self, key: str, tokens: int, request: Request) -> None:
        """Add the request of the episode `key`, whose conversation takes up to `tokens` tokens of the cache with it."""
        self._tokens[key] = tokens
        self._waiting[key] = request

    def admit(self, *, idle: bool) -> list[tuple[str, Request]]:
        """The requests that may start now, by episode; if the engine is `idle`, at least one of those that wait."""
        totals = zip(self._tokens, itertools.accumulate(self._tokens.values()), strict=True)
        held = itertools.takewhile(lambda total: total[1] <= self._capacity, totals)
        keys = [key for key, _ in held if key in self._waiting]
        if idle and not keys:
            keys = [key for key in self._tokens if key in self._waiting][:1]
        return [(key, self._waiting.pop(key)) for key in keys]

    def release(self, key: str) -> None:
        """Forget the episode `key` and its request."""
        self._tokens.pop(key, None)
        self._waiting.pop(key, None)


class VllmPolicy(ContinuousPolicy):
    """Passes conversations to vLLM as long as its cache holds them; each completion finishes on its own.

    Common prefixes are computed once, also between turns. Input and output are token ids: vLLM's tokenizer, chat
    template and generation config are not used. Each completion has its own seed, derived from the episode and the
    turn. The batch affects the last bits of the logits, and so occasionally a token. The engine frees its memory when
    it is garbage-collected; a process can hold only one. `logps`: keep log-probs of sampled tokens, which are those of
    the temperature if `llm` has vLLM's "processed_logprobs".
    """

    def __init__(
        self,
        llm: Any,
        tokenizer: Any,
        ref: PolicyRef,
        *,
        context: int,
        long_prompt: LongPrompt,
        logps: bool = False,
    ) -> None:
        self._ref, self._keeps_logps = ref, logps
        self._llm, self._engine = llm, llm.llm_engine
        renderer = Renderer(tokenizer)
        self._window = ContextWindow(renderer, context, long_prompt)
        self._end_of_turn = renderer.end_of_turn
        self._cache_tokens: int = self._engine.vllm_config.cache_config.kv_cache_size_tokens
        self._queue = AdmissionQueue[dict[str, Any]](0)
        self._first: Ids = ()
        self._running: set[str] = set()
        self._finished: dict[str, Completion] = {}
        _log.info("KV cache of %d tokens", self._cache_tokens)

    @classmethod
    def load(cls, path: Path, settings: EngineSettings) -> VllmPolicy:
        """The policy in the directory `path`; raises `UserError` if vLLM is missing, or rejects it or the settings."""
        ref, devices = policy_dir.describe(path), settings.devices
        require_whole(path)
        vllm = module()
        gc.collect()  # an unused engine keeps its memory until its reference cycles are collected
        dtype = loading.compute_dtype(settings.dtype)
        try:
            with loading.checkpoint(path, dtype) as folder:
                llm = vllm.LLM(
                    model=str(folder),
                    dtype=str(dtype).removeprefix("torch."),
                    max_model_len=settings.context,
                    trust_remote_code=False,
                    enable_prefix_caching=True,
                    generation_config="vllm",
                    enforce_eager=not torch.cuda.is_available(),
                    gpu_memory_utilization=devices.gpu_memory_utilization,
                    max_num_seqs=devices.max_num_seqs,
                    tensor_parallel_size=devices.tensor_parallel_size,
                )
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"{path}: vLLM rejects this policy, or a key of the machine's `vllm` ({reason})."
            ) from error
        tokenizer = loading.load_tokenizer(path)
        return cls(llm, tokenizer, ref, context=settings.context, long_prompt=settings.long_prompt)

    @property
    def ref(self) -> PolicyRef:
        """Name and hash of the weights."""
        return self._ref

    def submit(self, conversations: Sequence[Conversation], sampling: Sampling) -> None:
        """Queue the next action of each conversation, until the cache has room for it."""
        for conversation in conversations:
            ids = self._window.prompt_ids(conversation, sampling.max_new_tokens)
            if ids is None:
                self._finished[conversation.key] = self._window.completion(None)
                continue
            prompt = module().inputs.tokens_input(list(ids))
            request = {"prompt": prompt, "params": self._parameters(conversation, sampling)}
            if not self._first:  # the cache holds what prompts share with it once
                self._first, self._queue = ids, AdmissionQueue(self._cache_tokens - len(ids))
            unshared = len(ids) - common_prefix(self._first, ids)
            self._queue.add(conversation.key, unshared + sampling.max_new_tokens, request)

    def poll(self) -> dict[str, Completion]:
        """One step of vLLM; the completions that ended with it."""
        finished, self._finished = self._finished, {}
        for key, request in self._queue.admit(idle=not self._running):
            self._engine.add_request(key, **request)
            self._running.add(key)
        for output in self._engine.step() if self._running else ():
            self._running.discard(output.request_id)
            sampled = output.outputs[0]
            kept = zip(sampled.token_ids, sampled.logprobs, strict=True) if self._keeps_logps else ()
            logps = tuple(ranked[token].logprob for token, ranked in kept)
            finished[output.request_id] = self._window.completion(tuple(sampled.token_ids), logps)
        return finished

    def forget(self, key: str) -> None:
        """Give the room of the episode `key` to others; vLLM evicts the least recently used blocks of its cache."""
        self._queue.release(key)
        self._finished.pop(key, None)
        if key in self._running:
            self._engine.abort_request([key])
            self._running.discard(key)

    def _parameters(self, conversation: Conversation, sampling: Sampling) -> Any:
        return module().SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_new_tokens,
            seed=seeds.derive(conversation.seed, "turn", len(conversation.turns)),
            stop_token_ids=[self._end_of_turn],
            ignore_eos=True,  # only the end-of-turn token ends a turn
            detokenize=False,
            logprobs=0 if self._keeps_logps else None,  # 0: of the sampled token alone
            output_kind=module().sampling_params.RequestOutputKind.FINAL_ONLY,
        )


def player(folder: Path, settings: EngineSettings) -> tuple[VllmPolicy, int]:
    """The policy in a directory, for all workers: those that its cache does not hold wait for their first action."""
    return VllmPolicy.load(folder, settings), settings.workers


def module() -> Any:
    """The vLLM module, set to run its engine in this process; raises `UserError` if it cannot be imported."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    try:
        return importlib.import_module("vllm")
    except ImportError as error:
        raise UserError(
            f"`sampler.engine` is vllm, which cannot be imported ({error}); run the stage in the image `sample` "
            "(docs/run/cluster.md), or set sampler.engine=transformers."
        ) from error
