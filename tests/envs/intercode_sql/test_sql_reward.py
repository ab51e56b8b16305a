"""The reward against an independent statement of upstream's steps, with scipy's tau and numpy's rounding."""

import math
import random
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from coevolve.envs.intercode_sql.reward import is_exact, kendall_tau_b, reward

CELLS = st.one_of(st.integers(-2, 12), st.sampled_from(["a", "B", "é", "10", "9", "it's", ""]), st.none())
RESULTS = st.lists(st.tuples(CELLS), max_size=12)
#: Sequences over the same few strings, so that ties and shared rows are common.
SHUFFLED = st.lists(st.sampled_from("abcdef"), min_size=2, max_size=40).flatmap(
    lambda items: st.tuples(st.just(items), st.permutations(items))
)


def by_scipy(answer: list[tuple], gold: list[tuple]) -> float:
    """The same reward, slowly: list removals for the common rows, scipy for tau, numpy for the digits."""
    ours, golds = list(map(str, answer)), list(map(str, gold))
    if not ours and not golds:
        return 1.0

    def shared(rows: list[str], others: list[str]) -> list[str]:
        others = list(others)
        return [row for row in rows if row in others and not others.remove(row)]

    both = shared(ours, golds)
    share = len(both) / (len(ours) + len(golds) - len(both))
    tau = kendalltau(both, shared(golds, ours)).statistic if len(both) > 1 else math.nan
    return share if math.isnan(tau) else float(round(np.float64(tau) * share, 2))


@given(RESULTS, RESULTS)
@settings(max_examples=600, deadline=None)
def test_any_two_results(answer: list[tuple], gold: list[tuple]) -> None:
    assert reward(answer, gold) == by_scipy(answer, gold)


@given(RESULTS.flatmap(lambda rows: st.tuples(st.just(rows), st.permutations(rows), RESULTS)))
@settings(max_examples=600, deadline=None)
def test_the_gold_in_another_order_with_other_rows_between(case: tuple) -> None:
    gold, shuffled, others = case
    answer = [row for pair in zip(shuffled, others, strict=False) for row in pair] + shuffled[len(others) :]
    assert reward(answer, gold) == by_scipy(answer, gold)


@given(RESULTS.flatmap(lambda rows: st.tuples(st.just(rows), st.one_of(st.permutations(rows), RESULTS))))
@settings(max_examples=600, deadline=None)
def test_an_answer_is_exact_if_its_reward_is_one_before_rounding(case: tuple) -> None:
    """With so few rows the second-best reward is far below 0.995."""
    answer, gold = case
    assert is_exact(answer, gold) == (reward(answer, gold) == 1.0)


def test_an_answer_that_is_rounded_up_to_one_is_not_exact() -> None:
    gold = [(number,) for number in range(201)]
    assert reward(gold[:200], gold) == reward(gold, gold[:200]) == reward(gold, gold) == 1.0
    assert not is_exact(gold[:200], gold) and not is_exact(gold, gold[:200]) and is_exact(gold, gold)
    swapped = [*gold[:198], gold[199], gold[198], gold[200]]
    assert reward(swapped, gold) == 1.0 and not is_exact(swapped, gold)
    assert not is_exact(None, [])


@given(SHUFFLED)
@settings(max_examples=600, deadline=None)
def test_tau_is_scipys_to_the_last_bit(case: tuple[list[str], list[str]]) -> None:
    ours, scipys = kendall_tau_b(*case), kendalltau(*case).statistic
    assert ours == scipys or (math.isnan(ours) and math.isnan(scipys))


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_tau_of_sequences_with_different_ties(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 40))
    x, y = (data.draw(st.lists(st.sampled_from("abcde"), min_size=n, max_size=n)) for _ in range(2))
    ours, scipys = kendall_tau_b(x, y), kendalltau(x, y).statistic
    assert ours == scipys or (math.isnan(ours) and math.isnan(scipys))


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
    ],
)
def test_known_rewards(answer: list[tuple] | None, gold: list[tuple], expected: float) -> None:
    assert reward(answer, gold) == expected


def test_digits_are_numpys() -> None:
    gold = [(i,) for i in range(40)]
    assert reward(gold[:7], gold) == float(round(np.float64(7 / 40), 2)) == 0.18
    assert round(7 / 40, 2) == 0.17


def test_multiplicity_counts_on_both_sides() -> None:
    # Three of four rows, tau of -1/2 which floating point makes a little less: -0.375 is rounded towards 0.
    answer, gold = [("a",)] * 3 + [("b",)], [("b",)] + [("a",)] * 2
    assert Counter(answer) & Counter(gold) == Counter(gold)
    assert reward(answer, gold) == by_scipy(answer, gold) == -0.37


def test_large_results_are_compared_in_seconds() -> None:
    gold = [(number, "row") for number in range(20_000)]
    answer = random.Random(0).sample(gold, len(gold))
    started = time.monotonic()
    assert abs(reward(answer, gold)) < 0.05
    assert time.monotonic() - started < 5
