"""The built-in policy in different batches; what every engine must do is in `test_conformance.py`."""

from dataclasses import replace

import pytest
import torch
from policies.talk import GREEDY, SAMPLED, after, opening, play, policy
from templates.models import llama

from coevolve.errors import UserError
from coevolve.policies.context import common_prefix


def test_episodes_that_come_and_go_and_a_cold_cache_change_nothing():
    alone = {number: play(policy(slots=8), [opening(number)], SAMPLED)[0] for number in (1, 2, 3, 5, 6)}
    acting = policy(slots=8)
    for number in (5, 1, 6, 2):
        conversations = [opening(number), opening((number + 3) % 8)]
        assert play(acting, conversations, SAMPLED)[0] == alone[number]
        acting.forget(conversations[0].key)
    conversation = opening(3)
    for completion in alone[3]:
        assert policy(slots=8).complete([conversation], SAMPLED) == [completion]
        conversation = after(conversation, completion)


def test_a_conversation_reads_what_no_slot_holds_of_its_beginning(monkeypatch):
    """The turns of its own slot, and a copy of another one's, also of an episode that has ended."""
    acting, read = policy(slots=3), []
    prefill = acting._decoder.prefill
    monkeypatch.setattr(acting._decoder, "prefill", lambda prefills: read.extend(prefills) or prefill(prefills))
    first, same, other = opening(1), replace(opening(1), key="task1#1"), opening(2)
    play(acting, [first], GREEDY, turns=3)
    acting.forget(first.key)
    acting.complete([other, same], GREEDY)
    turns, shared = [len(each.ids) for each in read[:3]], common_prefix(read[0].ids, read[3].ids)
    assert 0 < shared < turns[0] - 1
    assert [each.start for each in read] == [0, turns[0], turns[1], shared, turns[0] - 1]


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
