from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coevolve.chat.chat_template import TokenizedTrajectory
from coevolve.records.pairs import PairKind
from coevolve.train.dataset import EMPTY_SLOT, TokenizedPair, cut_to_context, slot_order

LONG, SHORT = TokenizedTrajectory((5, 6, 7, 8), (0, 1, 0, 1)), TokenizedTrajectory((9, 8), (0, 1))
PAIR = TokenizedPair(PairKind.EXPERT_TARGET, LONG, SHORT, 0.5, 0.25)


@given(n=st.integers(1, 40), batch=st.integers(1, 10), epochs=st.integers(1, 3), seed=st.integers(0, 9))
def test_every_epoch_takes_every_row_once(n, batch, epochs, seed):
    order = slot_order(n, batch, epochs, seed)
    assert len(order) % batch == 0
    size = len(order) // epochs
    passes = [order[start : start + size] for start in range(0, len(order), size)]
    for one in passes:
        assert Counter(index for index in one if index != EMPTY_SLOT) == Counter(range(n))
        assert EMPTY_SLOT not in one[:n]
    assert order == slot_order(n, batch, epochs, seed)


def test_epochs_and_seeds_differ_in_order():
    order = slot_order(20, 4, 2, seed=1)
    assert order[:20] != order[20:] and order != slot_order(20, 4, 2, seed=2)


def test_a_curriculum_adds_the_examples_of_a_phase_in_its_part_of_the_epochs():
    phases = [3, 1, 1, 2, 1, 3, 2]
    order = slot_order(7, 2, 3, seed=1, phases=phases)
    epochs = order[:4], order[4:10], order[10:]
    assert [sorted(phases[slot] for slot in epoch if slot != EMPTY_SLOT) for epoch in epochs] == [
        [1, 1, 1], [1, 1, 1, 2, 2], sorted(phases),
    ]  # fmt: skip
    assert slot_order(7, 2, 3, seed=1, phases=[1] * 7) == slot_order(7, 2, 3, seed=1)
    assert len(slot_order(7, 2, 1, seed=1, phases=phases)) == 8, "one epoch has room for the last phase alone"


@pytest.mark.parametrize(("n", "epochs", "steps"), [(11, 0.5, 2), (11, 1, 3), (11, 1.5, 5), (40, 1.1, 11)])
def test_fractions_of_epochs(n, epochs, steps):
    assert len(slot_order(n, 4, epochs, seed=1)) == steps * 4


def test_cutting_is_counted_and_a_pair_goes_when_one_side_does():
    """A cut pair has the reference log-probs of what is left."""
    silent, cut = TokenizedTrajectory((1, 2, 3, 4), (0, 0, 0, 1)), TokenizedTrajectory((5, 6, 7), (0, 1, 0))
    training_set = cut_to_context([LONG, SHORT, silent, TokenizedTrajectory((1,), (1,))], context=3)
    assert training_set.examples == (cut, SHORT)
    assert (training_set.truncated, training_set.dropped) == (1, 2)
    known = (torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-4.0]))
    pairs = [replace(PAIR, reference_logps=known), TokenizedPair(PAIR.kind, SHORT, silent, 1.0, 0.0)]
    training_set = cut_to_context(pairs, context=3)
    (pair,) = training_set.examples
    assert (pair.chosen, pair.rejected, training_set.truncated, training_set.dropped) == (cut, SHORT, 1, 1)
    assert [side.tolist() for side in pair.reference_logps] == [[-1.0, -2.0], [-4.0]]
