"""The built-in policy against transformers' own generation, and in different batches."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from templates.models import llama, qwen3, tokenizer

from coevolve.chat.chat_template import Renderer
from coevolve.chat.prompts import prompt_messages
from coevolve.errors import UserError
from coevolve.policies.base import Conversation
from coevolve.policies.hf import TransformersPolicy
from coevolve.policies.kv_cache import common_prefix
from coevolve.records.episodes import PolicyRef, Sampling, Turn

REF = PolicyRef(name="random", sha256="0" * 64)
MODELS = {"tiny": llama(), "llama2": llama(seed=1), "qwen3": qwen3()}
GREEDY = Sampling(temperature=0.0, max_new_tokens=12)
SAMPLED = Sampling(temperature=1.0, top_p=0.95, max_new_tokens=12)
SEEN = ("The door is now open.", "You see a key, a stove and a cup of water. " * 4, "Nothing.")


def policy(name="tiny", slots=4, context=384, long_prompt="end"):
    return TransformersPolicy(MODELS[name], tokenizer(name), REF, slots=slots, context=context, long_prompt=long_prompt)


def opening(number):
    text = f"Your task is to find key {number}. " + "You see a red door. " * (number % 5)
    return Conversation(f"task{number}#0", 100 + number, prompt_messages(text), ())


def after(conversation, completion, observation):
    turn = Turn(text=completion.text, action=None, observation=observation, token_ids=completion.token_ids)
    return replace(conversation, turns=(*conversation.turns, turn))


def play(acting, conversations, sampling, turns=3):
    """The completions of each of some conversations, over several turns, side by side."""
    histories = [[] for _ in conversations]
    for turn in range(turns):
        completions = acting.complete(conversations, sampling)
        for history, completion in zip(histories, completions, strict=True):
            history.append(completion)
        conversations = [
            after(c, completion, SEEN[(turn + len(c.key)) % 3])
            for c, completion in zip(conversations, completions, strict=True)
        ]
    return histories


def generated(name, ids):
    """What transformers generates greedily after `ids`."""
    whole = MODELS[name].generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        do_sample=False,
        max_new_tokens=GREEDY.max_new_tokens,
        eos_token_id=Renderer(tokenizer(name)).end_of_turn,
        pad_token_id=0,
    )
    return tuple(whole[0, len(ids) :].tolist())


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_are_those_of_generate_on_the_whole_history(name):
    renderer, acting = Renderer(tokenizer(name)), policy(name)
    conversations = [opening(number) for number in range(4)]
    for turn in range(3):
        completions = acting.complete(conversations, GREEDY)
        for conversation, completion in zip(conversations, completions, strict=True):
            ids = renderer.conversation_ids(conversation.prompt, conversation.turns)
            assert completion.token_ids == generated(name, ids)
        conversations = [
            after(c, completion, SEEN[turn]) for c, completion in zip(conversations, completions, strict=True)
        ]


@pytest.fixture(scope="module")
def alone():
    """The completions of each of eight conversations in a batch of its own, by sampling and number."""
    return {
        (sampling, number): play(policy(slots=8), [opening(number)], sampling)[0]
        for sampling in (GREEDY, SAMPLED)
        for number in range(8)
    }


@settings(max_examples=12, deadline=None)
@given(
    numbers=st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True),
    sampling=st.sampled_from([GREEDY, SAMPLED]),
)
def test_the_batch_changes_nothing(alone, numbers, sampling):
    together = play(policy(slots=8), [opening(number) for number in numbers], sampling)
    assert together == [alone[sampling, number] for number in numbers]


@pytest.mark.parametrize("slots", [3, 8])
def test_fewer_slots_than_conversations_change_nothing(slots):
    together = play(policy(slots=slots), [opening(number) for number in range(8)], SAMPLED)
    assert together == [play(policy(slots=slots), [opening(number)], SAMPLED)[0] for number in range(8)]


def test_episodes_that_come_and_go_change_nothing(alone):
    acting = policy(slots=8)
    for number in (5, 1, 6, 2):
        conversations = [opening(number), opening((number + 3) % 8)]
        assert play(acting, conversations, SAMPLED)[0] == alone[SAMPLED, number]
        acting.forget(conversations[0].key)


def test_a_cold_cache_changes_nothing(alone):
    conversation = opening(3)
    for completion in alone[SAMPLED, 3]:
        assert policy(slots=8).complete([conversation], SAMPLED) == [completion]
        conversation = after(conversation, completion, SEEN[(len(conversation.turns) + len(conversation.key)) % 3])


def test_equal_calls_give_equal_completions():
    acting = policy()
    assert acting.complete([opening(1)], SAMPLED) == acting.complete([opening(1)], SAMPLED)


def watched_prefills(acting, monkeypatch):
    """The list that the decoder's prefills will be added to."""
    read = []
    decoder_prefill = acting._decoder.prefill

    def watched(prefills):
        read.extend(prefills)
        return decoder_prefill(prefills)

    monkeypatch.setattr(acting._decoder, "prefill", watched)
    return read


def test_the_cache_is_used_across_turns(monkeypatch):
    acting = policy(slots=2)
    read = watched_prefills(acting, monkeypatch)
    play(acting, [opening(1)], GREEDY, turns=3)
    assert [prefill.start for prefill in read] == [0, len(read[0].ids), len(read[1].ids)]


def test_a_new_conversation_copies_what_any_slot_holds_of_its_beginning(monkeypatch):
    acting = policy(slots=3)
    read = watched_prefills(acting, monkeypatch)
    first, same, other = opening(1), replace(opening(1), key="task1#1"), opening(2)
    acting.complete([first], GREEDY)
    acting.forget(first.key)  # the tokens of an episode that has ended count, too
    acting.complete([other, same], GREEDY)
    shared = common_prefix(read[0].ids, read[1].ids)
    assert 0 < shared < len(read[0].ids) - 1
    assert [prefill.start for prefill in read] == [0, shared, len(read[0].ids) - 1]


@pytest.mark.parametrize("slots", [1, 2, 3, 16])
def test_copies_change_nothing(slots):
    """Sixteen episodes of two tasks in few slots: conversations are evicted, copied from, and prefilled again."""
    conversations = [replace(opening(i % 2 + 1), key=f"task#{i}", seed=i) for i in range(16)]
    expected = [play(policy(slots=slots), [conversation], SAMPLED)[0] for conversation in conversations]
    acting = policy(slots=slots)
    assert play(acting, conversations, SAMPLED) == expected
    assert play(acting, conversations[::-1], SAMPLED)[::-1] == expected


def test_seeds_and_turns_decide_what_is_sampled():
    first, second = opening(1), replace(opening(1), seed=5)
    completions = [policy().complete([conversation], SAMPLED)[0] for conversation in (first, second, first)]
    assert completions[0] != completions[1]
    assert completions[0] == completions[2]


def test_a_turn_ends_with_its_token_or_is_cut_off(alone):
    completions = [completion for group in alone.values() for completion in group]
    end = Renderer(tokenizer("tiny")).end_of_turn
    for completion in completions:
        assert completion.truncated == (completion.token_ids[-1] != end)
        assert end not in completion.token_ids[:-1]
        assert not completion.truncated or len(completion.token_ids) == 12
    assert {completion.truncated for completion in completions} == {True, False}


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
def test_a_conversation_fits_up_to_the_last_token(spare, fits):
    length = len(Renderer(tokenizer("tiny")).prompt_ids(opening(3).prompt))
    tight = policy(context=length + GREEDY.max_new_tokens + spare)
    roomy = policy().complete([opening(3)], GREEDY)[0]
    completions = tight.complete([opening(3), opening(0)], GREEDY)
    assert [completion.fits for completion in completions] == [fits, True]
    unfit = replace(roomy, text="", token_ids=(), truncated=False, fits=False)
    assert completions[0] == (roomy if fits else unfit)


def test_a_long_prompt_may_lose_its_beginning():
    renderer, acting, context = Renderer(tokenizer("tiny")), policy(context=60, long_prompt="cut_left"), 60
    conversation, lost = opening(4), []
    for turn in range(3):
        ids = renderer.conversation_ids(conversation.prompt, conversation.turns)
        kept = ids[-(context - GREEDY.max_new_tokens) :]
        completion = acting.complete([conversation], GREEDY)[0]
        assert completion.token_ids == generated("tiny", kept)
        conversation = after(conversation, completion, SEEN[turn])
        lost.append(len(ids) - len(kept))
    assert lost[0] == 0 < lost[1] < lost[2]


def test_more_new_tokens_than_context_are_refused():
    with pytest.raises(UserError, match="max_new_tokens"):
        policy(context=12).complete([opening(0)], GREEDY)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_logits_that_are_not_finite_end_the_job(sampling):
    """Greedily such a policy would repeat one token, and sample a token beyond the vocabulary."""
    diverged = llama(seed=2)
    with torch.no_grad():
        diverged.model.norm.weight[0] = torch.inf
    acting = TransformersPolicy(diverged, tokenizer("tiny"), REF, slots=2, context=384, long_prompt="end")
    with pytest.raises(UserError, match="policy `random`: its logits are not finite; train it with a lower"):
        acting.complete([opening(0)], sampling)
