"""vLLM as a policy: an engine in this process that takes any number of conversations at once."""

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
from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.policies.base import Completion, Conversation
from coevolve.policies.context import LongPrompt, Window
from coevolve.storage import policy_dir
from coevolve.types import PolicyRef, Sampling


class VllmPolicy:
    """Gives all conversations of a call to vLLM together; what they begin with alike is read once, also over turns.

    Ids go in and ids come out, so that vLLM's own tokenizer, chat template and generation config have no say. Every
    answer has a seed of its own, from its conversation and turn; which others stand beside it shows in the last bits of
    its logits, and so now and then in a token. Let go, the engine gives its memory back; only one at a time can live in
    a process.
    """

    def __init__(self, llm: Any, tokenizer: Any, ref: PolicyRef, *, context: int, long_prompt: LongPrompt) -> None:
        self.ref = ref
        self._llm = llm
        renderer = Renderer(tokenizer)
        self._window = Window(renderer, context, long_prompt)
        self._end_of_turn = renderer.end_of_turn

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        context: int,
        long_prompt: LongPrompt,
        gpu_memory_utilization: float,
        max_num_seqs: int,
        tensor_parallel_size: int,
    ) -> VllmPolicy:
        """The policy in the directory `path`: on GPUs in bfloat16, else, with a vLLM made for CPUs, in float32.

        The last three are vLLM's own: the share of each GPU's memory that weights and cache may fill, how many
        conversations step at once (the others wait), and over how many GPUs the weights are divided. Raises `UserError`
        where vLLM is missing or refuses them.
        """
        ref, gpu = policy_dir.describe(path), torch.cuda.is_available()
        vllm = _vllm()
        gc.collect()  # an engine that was let go keeps its memory until its cycles are collected
        try:
            llm = vllm.LLM(
                model=str(path),
                dtype="bfloat16" if gpu else "float32",
                max_model_len=context,
                enable_prefix_caching=True,
                generation_config="vllm",
                enforce_eager=not gpu,
                gpu_memory_utilization=gpu_memory_utilization,
                max_num_seqs=max_num_seqs,
                tensor_parallel_size=tensor_parallel_size,
            )
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{path}: vLLM refuses this policy or a key of `sampler` ({reason}).") from error
        return cls(llm, loading.load_tokenizer(path), ref, context=context, long_prompt=long_prompt)

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion]:
        """The next action of each conversation, in order."""
        seen = [self._window.ids(conversation, sampling.max_new_tokens) for conversation in conversations]
        asked = {i: ids for i, ids in enumerate(seen) if ids is not None}
        answers = self._llm.generate(
            [{"prompt_token_ids": list(ids)} for ids in asked.values()],
            [self._parameters(conversations[i], sampling) for i in asked],
            use_tqdm=False,
        )
        said = {i: tuple(answer.outputs[0].token_ids) for i, answer in zip(asked, answers, strict=True)}
        return [self._window.completion(said.get(i)) for i in range(len(conversations))]

    def forget(self, key: str) -> None:
        """Nothing is kept by episode: vLLM drops what was not read for longest when it needs the room."""

    def _parameters(self, conversation: Conversation, sampling: Sampling) -> Any:
        return _vllm().SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_new_tokens,
            seed=seeds.derive(conversation.seed, "turn", len(conversation.turns)),
            stop_token_ids=[self._end_of_turn],
            ignore_eos=True,  # a checkpoint's other end tokens end no turn
            detokenize=False,
        )


def _vllm() -> Any:
    """The library, its engine in this process; raises `UserError` where it cannot be imported."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    try:
        return importlib.import_module("vllm")
    except ImportError as error:
        raise UserError(
            f"`sampler.engine` is vllm, which does not load here ({error}); run the stage in the image `sample` "
            "(docs/containers.md), or set sampler.engine=transformers."
        ) from error
