"""What every engine must do, on the same small policies, against transformers' own generation one by one."""

import gc
import importlib
from dataclasses import replace

import pytest
from policies.talk import GREEDY, SAMPLED, after, generated, opening, play
from templates.models import llama, qwen3, tokenizer

from coevolve.chat.chat_template import Renderer
from coevolve.errors import UserError
from coevolve.policies.base import EngineSettings
from coevolve.policies.hf import TransformersPolicy
from coevolve.policies.settings import VllmDevices
from coevolve.policies.vllm import VllmPolicy
from coevolve.records.episodes import Sampling, StopReason, Turn
from coevolve.storage import policy_dir

CONTEXT = 384
WILD = Sampling(temperature=2.0, max_new_tokens=24)


#: By chat template. Heads of 32 dimensions: vLLM on a CPU takes none of 16.
MODELS = {
    "tiny": llama(num_attention_heads=2),
    "llama2": llama(seed=1, num_attention_heads=2),
    "qwen3": qwen3(head_dim=32),
}


class EngineUnderTest:
    """One model in one engine; `policy` changes its context or its rule for long prompts."""

    def __init__(self, engine, name, path):
        self.name, self.renderer = name, Renderer(tokenizer(name))
        self._engine, self._path = engine, path
        policy_dir.seal(path, name, "", "")
        self._whole = self._load(context=CONTEXT, long_prompt="end")

    def policy(self, context=CONTEXT, long_prompt="end"):
        if self._engine == "transformers":
            return self._load(context=context, long_prompt=long_prompt)
        return VllmPolicy(
            self._whole._llm, tokenizer(self.name), self._whole.ref, context=context, long_prompt=long_prompt
        )

    def generated(self, ids):
        """What transformers generates greedily after `ids`."""
        return generated(MODELS[self.name], self.renderer.end_of_turn, ids)

    def _load(self, **window):
        if self._engine == "transformers":
            return TransformersPolicy.load(self._path, slots=8, device="cpu", **window)
        devices = VllmDevices(gpu_memory_utilization=0.1, max_num_seqs=16)
        return VllmPolicy.load(self._path, EngineSettings(**window, workers=8, usage=self._path, devices=devices))


@pytest.fixture(
    scope="module", params=[(engine, name) for engine in ("transformers", "vllm") for name in MODELS], ids="-".join
)
def engine(request, tmp_path_factory):
    engine, name = request.param
    if engine == "vllm":
        try:
            platform = importlib.import_module("vllm.platforms").current_platform
        except ImportError as error:
            pytest.skip(f"vLLM cannot be imported here: {error}")
        if not platform.is_cpu():
            pytest.skip("equal tokens are required in float32, which the kit uses only with a vLLM built for CPUs")
    path = tmp_path_factory.mktemp(name)
    MODELS[name].save_pretrained(path)
    tokenizer(name).save_pretrained(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
        yield EngineUnderTest(engine, name, path)
    gc.collect()


def test_greedy_tokens_are_those_of_generate_on_the_whole_history(engine):
    policy, conversations, lengths = engine.policy(), [opening(number) for number in range(8)], []
    for _ in range(3):
        completions = policy.complete(conversations, GREEDY)
        for conversation, completion in zip(conversations, completions, strict=True):
            ids = engine.renderer.conversation_ids(conversation.prompt, conversation.turns)
            assert completion.token_ids == engine.generated(ids)
            assert completion.text == engine.renderer.decode(completion.token_ids)
            lengths.append(len(completion.token_ids))
        conversations = [after(c, completion) for c, completion in zip(conversations, completions, strict=True)]
    assert max(lengths) == GREEDY.max_new_tokens


def test_a_turn_ends_with_its_token_or_is_cut_off(engine):
    conversations, end = [opening(number) for number in range(60)], engine.renderer.end_of_turn
    completions = [c for group in play(engine.policy(), conversations, WILD, turns=2) for c in group]
    for completion in completions:
        assert completion.truncated == (completion.token_ids[-1] != end)
        assert end not in completion.token_ids[:-1]
        assert not completion.truncated or len(completion.token_ids) == WILD.max_new_tokens
        assert not completion.stop
    assert {completion.truncated for completion in completions} == {True, False}


def test_the_seed_decides_what_is_sampled(engine):
    policy, conversation = engine.policy(), opening(1)
    first, again, other = (
        policy.complete([c], SAMPLED)[0] for c in (conversation, conversation, replace(conversation, seed=5))
    )
    assert first == again != other


def test_every_turn_draws_anew(engine):
    """The same ids, read at turn 4 and at turn 8 of an episode, are continued in two ways."""
    seen = Turn(text="", action=None, observation="Nothing.", token_ids=(5, engine.renderer.end_of_turn))
    earlier, later = (replace(opening(1), key=f"{turns}", turns=(seen,) * turns) for turns in (4, 8))
    limit = 20
    policy = engine.policy(context=limit + SAMPLED.max_new_tokens, long_prompt="cut_left")
    assert len({engine.renderer.conversation_ids(c.prompt, c.turns)[-limit:] for c in (earlier, later)}) == 1
    first, second = policy.complete([earlier, later], SAMPLED)
    assert first != second


def test_neither_order_nor_batch_nor_earlier_calls_matter_nor_what_was_forgotten(engine):
    conversations, policy = [opening(number) for number in range(8)], engine.policy()
    forwards = play(policy, conversations, SAMPLED)
    assert play(engine.policy(), conversations[::-1], SAMPLED)[::-1] == forwards
    assert play(engine.policy(), [opening(3)], SAMPLED) == [forwards[3]]
    policy.forget(conversations[2].key)
    policy.forget("unknown")
    assert play(policy, [opening(2)], SAMPLED) == [forwards[2]]


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
def test_a_conversation_fits_up_to_the_last_token(engine, spare, fits):
    length = len(engine.renderer.prompt_ids(opening(3).prompt))
    tight = engine.policy(context=length + GREEDY.max_new_tokens + spare)
    roomy = engine.policy().complete([opening(3)], GREEDY)[0]
    completions = tight.complete([opening(3), opening(0)], GREEDY)
    assert [completion.stop for completion in completions] == [None if fits else StopReason.CONTEXT, None]
    assert completions[0] == (
        roomy if fits else replace(roomy, text="", token_ids=(), truncated=False, stop=StopReason.CONTEXT)
    )
    assert tight.complete([opening(3)] * (not fits), GREEDY) == [completions[0]] * (not fits)


def test_a_long_prompt_may_lose_its_beginning(engine):
    context = len(engine.renderer.prompt_ids(opening(4).prompt)) + GREEDY.max_new_tokens
    policy, conversation, lost = engine.policy(context=context, long_prompt="cut_left"), opening(4), []
    for _ in range(3):
        ids = engine.renderer.conversation_ids(conversation.prompt, conversation.turns)
        kept = ids[-(context - GREEDY.max_new_tokens) :]
        completion = policy.complete([conversation], GREEDY)[0]
        assert completion.token_ids == engine.generated(kept)
        conversation = after(conversation, completion)
        lost.append(len(ids) - len(kept))
    assert lost[0] == 0 < lost[1] < lost[2]


def test_it_names_its_directory_and_refuses_more_new_tokens_than_context(engine):
    assert engine.policy().ref == policy_dir.describe(engine._path)
    assert engine.policy().complete([], GREEDY) == []
    with pytest.raises(UserError, match="max_new_tokens"):
        engine.policy(context=12).complete([opening(0)], GREEDY)
