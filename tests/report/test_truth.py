"""Verdicts against the truth: simulated trainings and tasks whose true values are known."""

import math

import numpy as np
import pytest
from report.explored import claim

from coevolve.report import stats, verdicts
from coevolve.report.claim_tests import ClaimTest
from coevolve.report.claims import ShareClaim, SizeClaim

#: Standard deviations in points of tasks, of trainings, and of what is left of both: each dominates once.
WORLDS = {
    "tasks": (30.0, 1.0, 20.0),
    "trainings": (5.0, 5.0, 10.0),
    "rest": (0.0, 0.0, 40.0),
    "tasks alone": (30.0, 0.0, 0.0),
    "all": (20.0, 8.0, 20.0),
}


def values(rng, mean, tasks, seeds, world):
    of_tasks, of_seeds, of_rest = WORLDS[world]
    rest = of_rest * rng.choice([-1.0, 0.0, 1.0], p=[0.25, 0.5, 0.25], size=(tasks, seeds)) * math.sqrt(2.0)
    return mean + rng.normal(0, of_tasks, (tasks, 1)) + rng.normal(0, of_seeds, (1, seeds)) + rest


def outcome(values_ts, about, rng):
    found = stats.spread([values_ts], resamples=1000, rng=rng, fixed_tasks=isinstance(about, SizeClaim))
    return verdicts.judge([ClaimTest("it", about, (found,))], 0.95)[0].verdict


@pytest.mark.parametrize("seeds", [3, 5, 8])
@pytest.mark.parametrize("world", WORLDS)
def test_no_difference_is_called_a_difference_in_at_most_one_case_of_twenty(world, seeds):
    rng = np.random.default_rng(seeds)
    cases = 400
    found = [outcome(values(rng, 0.0, 60, seeds, world), claim(), rng) for _ in range(cases)]
    false = cases - found.count("undecided")
    # 5 % and what 400 cases may show of it, in 999 of 1,000 such tests.
    assert false <= 20 + 3.1 * math.sqrt(cases * 0.05 * 0.95)


def test_nor_is_it_where_most_values_are_missing():
    """As in the rewards of failures, where a task counts with the seeds that failed on it. Trainings differ most."""
    rng = np.random.default_rng(5)
    cases, found = 400, []
    for _ in range(cases):
        run = rng.normal(0, 2.0, (150, 1)) + rng.normal(0, 8.0, (1, 5)) + rng.normal(0, 8.0, (150, 5))
        run[rng.random(run.shape) > 0.33] = math.nan
        found.append(outcome(run, claim(), rng))
    assert cases - found.count("undecided") <= 20 + 3.1 * math.sqrt(cases * 0.05 * 0.95)


def test_a_cell_that_is_the_papers_is_reproduced_with_eight_trainings():
    """Trainings differ by 2 points, the cell has 3 of tolerance; the paper's own 200 instructions do not vary."""
    rng = np.random.default_rng(1)
    tasks = rng.normal(0, 35.0, (200, 1))
    tasks -= tasks.mean()
    found = []
    for _ in range(300):
        run = 63.0 + tasks + rng.normal(0, 2.0, (1, 8)) + rng.normal(0, 1.0, (200, 8))
        found.append(outcome(run, claim(60.0, 66.0), rng))
    assert found.count("reproduced") / 300 >= 0.8
    assert "contradicted" not in found


def test_a_cell_that_lies_at_its_tolerance_is_decided_in_at_most_one_case_of_twenty():
    rng = np.random.default_rng(2)
    found = [
        outcome(66.0 + rng.normal(0, 2.0, (1, 5)) + rng.normal(0, 1.0, (50, 5)), claim(60.0, 66.0), rng)
        for _ in range(400)
    ]
    for verdict in ("reproduced", "contradicted"):
        assert found.count(verdict) <= 10 + 3.1 * math.sqrt(400 * 0.025 * 0.975)


def test_a_share_at_the_end_of_its_range_is_inside_it():
    """Every episode ends at 0 or 1: as sparse as can be, which is what the claim says."""
    rng = np.random.default_rng(3)
    share = {"kind": "share", "text": "it says", "place": "section 5", "method": "eto", "env": "webshop"}
    sparse = ShareClaim(**share, outcome="extreme", threshold=0.6, value=95.0, tolerance=5.0)
    assert outcome(np.full((40, 3), 100.0), sparse, rng) == "reproduced"
    assert outcome(np.full((40, 3), 90.0), sparse, rng) == "reproduced"
    assert outcome(np.zeros((40, 3)), claim(), rng) == "undecided"  # an order is strict


def test_trainings_count_where_every_group_has_them():
    """A mean over two environments of which one was trained three times and the other once."""
    thrice, once = np.array([[0.0, 0.1, 0.2]] * 5), np.array([[0.5, math.nan, math.nan]] * 5)
    found = stats.spread([thrice, once], resamples=100, rng=np.random.default_rng(0))
    assert (found.mean, found.n_seeds, found.of_seeds) == (pytest.approx(0.6), 1, None)


@pytest.mark.parametrize(("world", "seeds"), [("tasks", 1), ("tasks", 4), ("trainings", 4), ("all", 4)])
def test_intervals_hold_the_truth_as_often_as_they_say(world, seeds):
    """One training shows nothing of how trainings differ: with it, only tasks may."""
    rng = np.random.default_rng(4)
    held = 0
    for _ in range(300):
        low, high = stats.spread([values(rng, 5.0, 60, seeds, world)], resamples=1000, rng=rng).interval(0.95)
        held += low <= 5.0 <= high
    assert 300 * 0.95 - 3.1 * math.sqrt(300 * 0.95 * 0.05) <= held <= 300 * 0.99


def single_run_verdicts(truth, gap, seeds, cases=400):
    """Verdicts on the paper's number, a run from the first of two methods that lie `gap` deviations of a run apart.

    `truth`: the place of our runs, 0 for that method, 1 for the other. The rival's number is a run of the other.
    """
    rng, found = np.random.default_rng(seeds), []
    for _ in range(cases):
        paper, rival = rng.normal(0, 1), gap + rng.normal(0, 1)
        ours = truth * gap + rng.normal(0, 1, (1, seeds)) + np.zeros((50, 1))
        found.append(outcome(ours, claim(paper - 0.2, paper + 0.2, rival=rival), rng))
    return {verdict: found.count(verdict) / cases for verdict in dict.fromkeys(found)}


@pytest.mark.parametrize("seeds", [3, 5, 8])
@pytest.mark.parametrize("gap", [0.0, 2.0, 3.5])
def test_a_single_run_of_the_paper_is_judged_wrongly_in_at_most_one_case_of_twenty(gap, seeds):
    most = 0.05 + 3.1 * math.sqrt(0.05 * 0.95 / 400)
    assert single_run_verdicts(0, gap, seeds).get("contradicted", 0.0) <= most
    assert single_run_verdicts(1, gap, seeds).get("consistent", 0.0) <= most


@pytest.mark.parametrize("truth", [0, 1])
def test_five_seeds_decide_where_the_two_printed_numbers_lie_far_enough_apart(truth):
    """They lie 3.5 deviations of a run apart. Our runs are those of the paper's method, or of the rival."""
    rng, found = np.random.default_rng(7), []
    for _ in range(400):
        paper = rng.normal(0, 1)
        ours = truth * (paper + 3.5) + rng.normal(0, 1, (1, 5)) + np.zeros((50, 1))
        found.append(outcome(ours, claim(paper - 0.2, paper + 0.2, rival=paper + 3.5), rng))
    assert found.count("undecided") <= 0.4 * 400
    spread = stats.Spread(0.0, np.zeros(9), 50, 5, of_tasks=0.0, of_seeds=1.0, fixed_tasks=True)
    assert spread.seeds_for_single_run(3.5, 0.05, verdicts.POWER) == 8
    assert spread.seeds_for_single_run(2.7, 0.05, verdicts.POWER) is None  # 1.96 + 0.84 deviations are the least


def test_an_order_that_one_seed_carries_is_no_verdict():
    """The seeds of `science`, co-evolving minus SFT."""
    seeds = np.array([[6.4, -4.0, 4.7, 6.0, 8.1, 1.2, 2.4, 7.6]])

    def test(shift):
        rng = np.random.default_rng(0)
        values = shift + seeds + rng.normal(0, 0.1, (100, 8))
        return ClaimTest("it", claim(), (stats.spread([values], resamples=1000, rng=rng),))

    (carried,) = verdicts.judge([test(0.0)], 0.95)
    assert carried.verdict == "undecided" and carried.low > 0 and verdicts.CARRIED in carried.text
    assert verdicts.order_outcome(verdicts.in_miniature(test(0.0), 0.95)) == "decided, carried by one seed"
    assert verdicts.judge([test(4.0)], 0.95)[0].verdict == "reproduced"
