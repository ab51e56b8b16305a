"""vLLM as a policy: its engine runs in this process and batches the conversations."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from coevolve import seeds
from coevolve.chat.chat_template import Renderer
from coevolve.config.names import LongPrompt
from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.policies.base import Completion, Conversation
from coevolve.policies.checkpoint import require_whole
from coevolve.policies.context import ContextWindow
from coevolve.policies.engines import EngineSettings
from coevolve.records.episodes import PolicyRef, Sampling
from coevolve.storage import policy_dir


class VllmPolicy:
    """Passes all conversations of a call to vLLM together; common prefixes are computed once, also between turns.

    Input and output are token ids: vLLM's tokenizer, chat template and generation config are not used. Each completion
    has its own seed, derived from the episode and the turn. The batch affects the last bits of the logits, and so
    occasionally a token. The engine frees its memory when it is garbage-collected; a process can hold only one.
    """

    def __init__(self, llm: Any, tokenizer: Any, ref: PolicyRef, *, context: int, long_prompt: LongPrompt) -> None:
        self.ref = ref
        self._llm = llm
        renderer = Renderer(tokenizer)
        self._window = ContextWindow(renderer, context, long_prompt)
        self._end_of_turn = renderer.end_of_turn

    @classmethod
    def load(cls, path: Path, settings: EngineSettings) -> VllmPolicy:
        """The policy in the directory `path`; raises `UserError` if vLLM is missing, or rejects it or the settings."""
        ref, devices = policy_dir.describe(path), settings.devices
        require_whole(path)
        vllm = _vllm()
        gc.collect()  # an unused engine keeps its memory until its reference cycles are collected
        try:
            llm = vllm.LLM(
                model=str(path),
                dtype=str(loading.compute_dtype(settings.dtype)).removeprefix("torch."),
                max_model_len=settings.context,
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

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion]:
        """The next action of each conversation, in order."""
        prompts = [self._window.prompt_ids(conversation, sampling.max_new_tokens) for conversation in conversations]
        fitting = {i: ids for i, ids in enumerate(prompts) if ids is not None}
        outputs = self._llm.generate(
            [{"prompt_token_ids": list(ids)} for ids in fitting.values()],
            [self._parameters(conversations[i], sampling) for i in fitting],
            use_tqdm=False,
        )
        sampled = {i: tuple(output.outputs[0].token_ids) for i, output in zip(fitting, outputs, strict=True)}
        return [self._window.completion(sampled.get(i)) for i in range(len(conversations))]

    def forget(self, key: str) -> None:
        """Does nothing: vLLM evicts the least recently used blocks of its cache."""

    def _parameters(self, conversation: Conversation, sampling: Sampling) -> Any:
        return _vllm().SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_new_tokens,
            seed=seeds.derive(conversation.seed, "turn", len(conversation.turns)),
            stop_token_ids=[self._end_of_turn],
            ignore_eos=True,  # only the end-of-turn token ends a turn
            detokenize=False,
        )


def player(folder: Path, settings: EngineSettings) -> tuple[VllmPolicy, int]:
    """The policy in a directory; it plays as many episodes at once as there are workers."""
    return VllmPolicy.load(folder, settings), settings.workers


def _vllm() -> Any:
    """The vLLM module, set to run its engine in this process; raises `UserError` if it cannot be imported."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    try:
        return importlib.import_module("vllm")
    except ImportError as error:
        raise UserError(
            f"`sampler.engine` is vllm, which cannot be imported ({error}); run the stage in the image `sample` "
            "(docs/run/containers.md), or set sampler.engine=transformers."
        ) from error
