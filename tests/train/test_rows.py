from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coevolve.train.rows import (
    EMPTY,
    IGNORED,
    PairCollator,
    PairRow,
    Row,
    RowCollator,
    fit_pairs,
    fit_rows,
    step_order,
)
from coevolve.types import PairKind

LONG, SHORT = Row((5, 6, 7, 8), (0, 1, 0, 1)), Row((9, 8), (0, 1))
PAIR = PairRow(PairKind.EXPERT_TARGET, LONG, SHORT, 0.5, 0.25)


@given(n=st.integers(1, 40), batch=st.integers(1, 10), epochs=st.integers(1, 3), seed=st.integers(0, 9))
def test_every_epoch_takes_every_row_once(n, batch, epochs, seed):
    order = step_order(n, batch, epochs, seed)
    assert len(order) % batch == 0
    size = len(order) // epochs
    passes = [order[start : start + size] for start in range(0, len(order), size)]
    for one in passes:
        assert Counter(index for index in one if index != EMPTY) == Counter(range(n))
        assert EMPTY not in one[:n]
    assert order == step_order(n, batch, epochs, seed)


def test_epochs_and_seeds_differ_in_order():
    order = step_order(20, 4, 2, seed=1)
    assert order[:20] != order[20:] and order != step_order(20, 4, 2, seed=2)


@pytest.mark.parametrize(("epochs", "steps"), [(0.5, 2), (1, 3), (1.5, 5)])
def test_fractions_of_epochs(epochs, steps):
    assert len(step_order(11, 4, epochs, seed=1)) == steps * 4


def test_cutting_is_counted():
    fitted = fit_rows([LONG, SHORT, Row((1, 2, 3, 4), (0, 0, 0, 1)), Row((1,), (1,))], context=3)
    assert fitted.rows == (Row((5, 6, 7), (0, 1, 0)), SHORT)
    assert (fitted.truncated, fitted.dropped) == (1, 2)


def test_a_pair_goes_when_one_side_does():
    silent = Row((1, 2, 3, 4), (0, 0, 0, 1))
    fitted = fit_pairs([PAIR, PairRow(PAIR.kind, SHORT, silent, 1.0, 0.0)], context=3)
    assert [pair.chosen for pair in fitted.rows] == [Row((5, 6, 7), (0, 1, 0))]
    assert (fitted.truncated, fitted.dropped) == (1, 1)


def test_masks_must_match_ids():
    with pytest.raises(ValueError, match="zip"):
        RowCollator([Row((1, 2), (0, 1, 1))])([{"row": 0}])


def test_rows_become_labels_on_action_tokens():
    batch = RowCollator([LONG, SHORT])([{"row": 1}, {"row": EMPTY}, {"row": 0}])
    assert batch["input_ids"].tolist() == [[9, 8, 0, 0], [5, 6, 7, 8]]
    assert batch["labels"].tolist() == [[IGNORED, 8, IGNORED, IGNORED], [IGNORED, 6, IGNORED, 8]]


def test_pairs_carry_weights_kinds_and_references():
    references = [(torch.ones(3), torch.full((1,), 2.0))]
    batch = PairCollator([PAIR], references)([{"row": 0}, {"row": EMPTY}])
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8], [9, 8, 0, 0]]
    assert (batch["lambda_dpo"].tolist(), batch["lambda_sft"].tolist()) == ([0.5], [0.25])
    assert batch["kinds"] == ["expert_target"]
    assert batch["reference"].tolist() == [[1, 1, 1], [2, 0, 0]]


def test_an_empty_micro_batch_has_no_label_and_no_weight():
    batch = PairCollator([PAIR])([{"row": EMPTY}])
    assert (batch["labels"] == IGNORED).all()
    assert batch["kinds"] == [] and batch["lambda_dpo"].tolist() == [0.0]
