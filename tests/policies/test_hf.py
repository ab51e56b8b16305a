"""The built-in policy in different batches; what every engine must do is in `test_conformance.py`."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policies.talk import GREEDY, SAMPLED, after, opening, play, policy
from templates.models import llama

from coevolve.errors import UserError
from coevolve.policies.context import common_prefix


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


def test_episodes_that_come_and_go_and_a_cold_cache_change_nothing(alone):
    acting = policy(slots=8)
    for number in (5, 1, 6, 2):
        conversations = [opening(number), opening((number + 3) % 8)]
        assert play(acting, conversations, SAMPLED)[0] == alone[SAMPLED, number]
        acting.forget(conversations[0].key)
    conversation = opening(3)
    for completion in alone[SAMPLED, 3]:
        assert policy(slots=8).complete([conversation], SAMPLED) == [completion]
        conversation = after(conversation, completion)


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
    assert acting.slots == slots
    assert play(acting, conversations[::-1], SAMPLED)[::-1] == expected


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_logits_that_are_not_finite_end_the_job(sampling):
    """Greedily such a policy would repeat one token, and sample a token beyond the vocabulary."""
    diverged = llama(seed=2)
    with torch.no_grad():
        diverged.model.norm.weight[0] = torch.inf
    with pytest.raises(UserError, match="policy `random`: its logits are not finite; train it with a lower"):
        policy(model=diverged).complete([opening(0)], sampling)
