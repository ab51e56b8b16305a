"""The reward against an independent statement of upstream's steps, with scipy's tau and numpy's rounding."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from coevolve.envs.intercode_sql.reward import is_exact, reward

CELLS = st.one_of(st.integers(-2, 12), st.sampled_from(["a", "B", "é", "10", "9", "it's", ""]), st.none())
RESULTS = st.lists(st.tuples(CELLS), max_size=12)


def between(rows, others):
    """The rows in turn with others, then the rest of them."""
    return [row for pair in zip(rows, others, strict=False) for row in pair] + rows[len(others) :]


def by_scipy(answer, gold):
    """The same reward, slowly: list removals for the common rows, scipy for tau, numpy for the digits."""
    ours, golds = list(map(str, answer)), list(map(str, gold))
    if not ours and not golds:
        return 1.0

    def shared(rows, others):
        others = list(others)
        return [row for row in rows if row in others and not others.remove(row)]

    both = shared(ours, golds)
    share = len(both) / (len(ours) + len(golds) - len(both))
    tau = kendalltau(both, shared(golds, ours)).statistic if len(both) > 1 else math.nan
    return share if math.isnan(tau) else float(round(np.float64(tau) * share, 2))


@given(RESULTS.flatmap(lambda gold: st.tuples(st.just(gold), st.permutations(gold), RESULTS)))
@settings(max_examples=600)
def test_any_two_results_the_gold_in_another_order_and_that_with_other_rows_between(case):
    """With so few rows the second-best reward is far below 0.995: what is rounded to one is exact."""
    gold, shuffled, others = case
    for answer in (others, shuffled, between(shuffled, others)):
        assert reward(answer, gold) == by_scipy(answer, gold)
        assert is_exact(answer, gold) == (reward(answer, gold) == 1.0)


def test_an_answer_that_is_rounded_up_to_one_is_not_exact():
    gold = [(number,) for number in range(201)]
    assert reward(gold[:200], gold) == reward(gold, gold[:200]) == reward(gold, gold) == 1.0
    assert not is_exact(gold[:200], gold) and not is_exact(gold, gold[:200]) and is_exact(gold, gold)
    swapped = [*gold[:198], gold[199], gold[198], gold[200]]
    assert reward(swapped, gold) == 1.0 and not is_exact(swapped, gold)
    assert not is_exact(None, [])


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        (None, [], 0.0),
        (None, [(1,)], 0.0),
        ([], [], 1.0),
        ([], [(1,)], 0.0),
        ([(1,)], [], 0.0),
        ([(1,)], [(1,)], 1.0),
        ([(1,), (1,)], [(1,), (1,)], 1.0),
        ([(1,), (2,)], [(2,), (1,)], -1.0),
        ([(1,), (2,), (3,)], [(1,), (2,), (4,)], 0.5),
        # One common row has no order: the share is not rounded.
        ([(1,), (2,)], [(1,), (3,)], 1 / 3),
        # "10" comes before "9": strings, not numbers, but the same ones on both sides.
        ([(9,), (10,)], [(9,), (10,)], 1.0),
        ([(1,)], [("1",)], 0.0),
        ([(1.0,)], [(1,)], 0.0),
        # The digits are numpy's: Python rounds 7 / 40 to 0.17.
        ([(i,) for i in range(7)], [(i,) for i in range(40)], 0.18),
        # Three of four rows, tau of -1/2 which floating point makes a little less: -0.375 is rounded towards 0.
        ([*[("a",)] * 3, ("b",)], [("b",), ("a",), ("a",)], -0.37),
    ],
)
def test_known_rewards(answer, gold, expected):
    assert reward(answer, gold) == expected
