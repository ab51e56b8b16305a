"""The one estimate: by hand, and in simulated runs whose truth is known."""

import math
import os
import subprocess
import sys
from itertools import combinations, product

import numpy as np
import pytest
from builders import record
from report.explored import claim
from scipy.stats import t as student

from coevolve.config.report import ReportConfig
from coevolve.errors import UserError
from coevolve.report import estimation, verdicts
from coevolve.report.claim_tests import ClaimTest
from coevolve.report.claims import ShareClaim, SizeClaim
from coevolve.report.estimation import RewardTable

REPORT = ReportConfig(confidence=0.95, collapse=0.2)


def records(rewards_by_task, split="seen"):
    return [
        record(task, reward, split=split, seed=seed)
        for task, rewards in rewards_by_task.items()
        for seed, reward in enumerate(rewards)
    ]


def of_records(*groups):
    return estimation.of_records(*groups, report=REPORT)


def difference(a, b):
    return estimation.difference(RewardTable.of(a), RewardTable.of(b), REPORT)


def estimate(*groups, fixed_tasks=False):
    return estimation.estimate([np.array(values) for values in groups], 0, 0.95, fixed_tasks=fixed_tasks)


def test_one_seeds_interval_is_students_over_tasks():
    values = [0.2, 0.3, 0.6, 0.8, 0.45]
    found = of_records(records({f"t{number}": [value] for number, value in enumerate(values)}))
    half = student.ppf(0.975, 4) * np.std(values, ddof=1) / math.sqrt(5)
    assert (found.low, found.high) == pytest.approx((np.mean(values) - half, np.mean(values) + half))
    point = of_records(records({"a": [0.4]}))
    assert (point.mean, point.low, point.high, point.n_tasks) == pytest.approx((0.4, 0.4, 0.4, 1))


def test_the_order_of_records_changes_nothing():
    rows = records({f"t{i}": [0.1 * i, 0.05, 0.7 / (i + 1)] for i in range(7)})
    assert of_records(rows) == of_records(rows[::-1])


def test_where_no_value_is_missing_the_effects_of_seeds_are_those_of_their_means():
    """For each number of tasks and seeds, also where rounding makes a singular value that is 0 a small number."""
    rng = np.random.default_rng(0)
    for tasks, trainings in product((1, 7, 90, 210, 300), range(1, 11)):
        values_ts = rng.random((tasks, trainings))
        means = [*estimate(values_ts).seed_means.values()]
        assert means == pytest.approx(values_ts.mean(axis=0), abs=1e-12), (tasks, trainings)


def test_a_mean_of_groups_weighs_groups_not_tasks_and_is_narrower_than_each():
    """The same task id in two splits is two tasks."""
    few, many = records({"t0": [1.0]}), records({f"t{i}": [0.0] for i in range(9)}, split="unseen")
    result = of_records(few, many)
    assert (result.mean, result.n_tasks, result.n) == (0.5, 10, 10)
    assert of_records(few + many).n_tasks == 10
    groups = [records({f"t{i}": [i / 9, i / 9] for i in range(10)}, split) for split in ("seen", "unseen")]
    alone, both = of_records(groups[0]), of_records(*groups)
    assert (both.high - both.low) / (alone.high - alone.low) == pytest.approx(2**-0.5)


def test_difference_is_paired_by_task_and_uses_shared_tasks_only():
    base = {f"t{i}": [i / 20, i / 20] for i in range(10)}
    better = {task: [value + 0.1 for value in values] for task, values in base.items()}
    result = difference(records(better), records(base))
    assert (result.mean, result.low, result.high) == pytest.approx((0.1, 0.1, 0.1))
    assert (result.n, result.n_tasks, result.n_seeds) == (40, 10, 2)
    result = difference(records({"a": [1.0], "b": [0.0]}), records({"b": [0.5], "c": [0.0]}))
    assert (result.mean, result.n, result.n_tasks) == (-0.5, 2, 1)


def test_nothing_to_average_is_an_error():
    with pytest.raises(UserError, match="no evaluation records"):
        of_records([])
    with pytest.raises(UserError, match="no evaluation records"):
        of_records(records({"a": [1.0]}), [])
    with pytest.raises(UserError, match="share no evaluated task"):
        difference(records({"a": [1.0]}), records({"b": [1.0]}))


def test_an_interval_stays_in_the_range_of_rewards():
    rare = of_records(records({f"t{i}": [float(i == 0)] for i in range(12)}))
    often = of_records(records({f"t{i}": [float(i != 0)] for i in range(12)}))
    assert (rare.low, often.high) == (0.0, 1.0)
    negative = of_records(records({"a": [-0.5], "b": [0.5], "c": [-0.2]}))
    assert -1.0 <= negative.low < 0.0


def of_strings():
    """An estimate and a difference over tasks and seeds."""
    first, other = (
        records({f"task{t}": [((t * t + shift) % 11 + 0.3 * seed) / 12 for seed in range(3)] for t in range(30)})
        for shift in (0, 4)
    )
    return of_records(first), difference(first, other)


def test_the_interval_does_not_depend_on_the_order_of_sets(root):
    """Python orders a set of strings by hashes that differ from process to process."""
    assert all(each.high - each.low > 0.05 for each in of_strings())
    command = [sys.executable, "-c", "from report.test_estimation import of_strings; print(*of_strings())"]
    paths = os.pathsep.join([str(root), str(root / "tests")])
    printed = [
        subprocess.check_output(command, env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": seed}, text=True)
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1] == "{} {}\n".format(*of_strings())


@pytest.mark.parametrize("seeds", [1, 4])
def test_the_variance_of_a_mean_over_tasks_is_unbiased(seeds):
    """With four tasks a variance that divides by T is a quarter too small."""
    rng = np.random.default_rng(0)
    found = [estimate(rng.normal(0.0, 1.0, (4, 1)) + rng.normal(0.0, 0.1, (4, seeds))).of_tasks for _ in range(2000)]
    assert np.mean(found) == pytest.approx(1.0 / 4, rel=0.05)


def test_a_matrix_holds_means_by_task_and_seed_and_its_mean_weighs_tasks():
    values = [("a", 0, 1.0), ("a", 0, 0.0), ("b", 1, 0.5), ("other", 0, 9.0), ("a", 7, 9.0)]
    np.testing.assert_array_equal(estimation.matrix(values, ["a", "b"], [0, 1]), [[0.5, math.nan], [math.nan, 0.5]])
    found = estimate([[0.0, 0.0], [1.0, math.nan], [math.nan, math.nan]])
    assert (found.mean, found.n_tasks, found.n_seeds) == (0.5, 2, 2)


def test_the_two_parts_of_the_variance_are_those_of_a_two_way_table():
    rng = np.random.default_rng(1)
    values_ts = rng.normal(0, 1.0, (60, 1)) + rng.normal(0, 0.5, (1, 40)) + rng.normal(0, 0.7, (60, 40))
    found = estimate(values_ts)
    by_task, by_seed = values_ts.mean(axis=1), values_ts.mean(axis=0)
    left = values_ts - by_task[:, None] - by_seed + values_ts.mean()
    residual = (left**2).sum() / (59 * 39) / (60 * 40)
    expected = by_task.var(ddof=1) / 60 + by_seed.var(ddof=1) / 40 - residual
    assert found.of_tasks + found.of_seeds / 40 == pytest.approx(expected, rel=1e-9)
    half = math.hypot(1.959964 * math.sqrt(found.of_tasks), student.ppf(0.975, 39) * math.sqrt(found.of_seeds / 40))
    assert (found.low, found.high) == pytest.approx((found.mean - half, found.mean + half))


def test_tasks_that_are_fixed_leave_students_interval_of_the_trainings_means():
    values_ts = np.random.default_rng(2).normal(0, 1.0, (30, 1)) + np.array([[0.1, 0.3, 0.2, 0.6]])
    found = estimate(values_ts, fixed_tasks=True)
    half = student.ppf(0.975, 3) * values_ts.mean(axis=0).std(ddof=1) / 2
    assert (found.low, found.high) == pytest.approx((values_ts.mean() - half, values_ts.mean() + half))
    assert found.of_tasks == 0.0
    ends = estimation.interval([*found.seed_means.values()], 0.0, 0.95)
    assert ends == pytest.approx((found.low, found.high))
    assert estimation.interval([0.1], 0.0, 0.95) is None


def test_trainings_count_where_every_group_has_them():
    """A mean over two environments of which one was trained three times and the other once."""
    found = estimate([[0.0, 0.1, 0.2]] * 5, [[0.5, math.nan, math.nan]] * 5)
    assert (found.mean, found.n_seeds, found.of_seeds) == (pytest.approx(0.6), 1, None)


#: The seeds of `science`, co-evolving minus SFT: without one of them the interval contains 0.
ONE_DECIDES = np.array([6.4, -4.0, 4.7, 6.0, 8.1, 1.2, 2.4, 7.6])


def one_by_one(means, of_tasks):
    """The rule in words: the intervals of all seeds, and without each one, lie on the same side of 0."""
    parts = [means, *combinations(means, len(means) - 1)]
    ends = [estimation.interval([*part], of_tasks, 0.95) for part in parts]
    return all(low > 0 for low, _ in ends) - all(high < 0 for _, high in ends)


def test_a_decision_needs_four_seeds_and_no_single_one():
    rng = np.random.default_rng(3)
    for seeds, shift in product(range(4, 10), (-3.0, 0.0, 2.0, 4.0)):
        cases = shift + rng.normal(0.0, 2.0, (40, seeds))
        expected = [one_by_one([*means], 0.2) for means in cases]
        assert estimation.decisions(cases, 0.2, 0.95).tolist() == expected
    assert estimation.decisions(np.array([[5.0, 5.1, 5.2]]), 0.0, 0.95) == [0]

    def of_seeds(means, tasks=100):
        found = estimate(np.repeat([means], tasks, axis=0) + rng.normal(0, 0.1, (tasks, len(means))))
        return found, estimation.decided(found, 0.95)

    carried, sign = of_seeds(ONE_DECIDES)
    assert carried.low > 0 and sign == 0 and estimation.mark(carried, 0.95) == " (undecided)"
    clear, sign = of_seeds(ONE_DECIDES + 4)
    assert sign == 1 and estimation.mark(clear, 0.95) == "" == estimation.mark(of_seeds(ONE_DECIDES - 4)[0], 0.95)
    assert of_seeds(-ONE_DECIDES - 4)[1] == -1
    assert of_seeds(ONE_DECIDES + 50, tasks=5)[1] == 0, "five signs agree by chance in 6 % of cases"


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


def most(cases, share):
    """How many of the cases may show a share, in 999 of 1,000 such tests."""
    return cases * share + 3.1 * math.sqrt(cases * share * (1 - share))


@pytest.mark.parametrize("seeds", [4, 5, 8])
@pytest.mark.parametrize("world", WORLDS)
def test_no_difference_is_decided_in_at_most_one_case_of_twenty(world, seeds):
    rng = np.random.default_rng(seeds)
    found = [estimate(values(rng, 0.0, 60, seeds, world)) for _ in range(400)]
    assert sum(each.low > 0 or each.high < 0 for each in found) <= most(400, 0.05)
    assert sum(abs(estimation.decided(each, 0.95)) for each in found) <= most(400, 0.05)


def test_nor_is_it_where_most_values_are_missing():
    """As in the rewards of failures, where a task counts with the seeds that failed on it. Trainings differ most."""
    rng, found = np.random.default_rng(5), 0
    for _ in range(400):
        run = rng.normal(0, 2.0, (150, 1)) + rng.normal(0, 8.0, (1, 5)) + rng.normal(0, 8.0, (150, 5))
        run[rng.random(run.shape) > 0.33] = math.nan
        each = estimate(run)
        found += each.low > 0 or each.high < 0
    assert found <= most(400, 0.05)


@pytest.mark.parametrize(("world", "seeds"), [("tasks", 1), ("tasks", 4), ("trainings", 4), ("all", 4)])
def test_intervals_hold_the_truth_as_often_as_they_say(world, seeds):
    """One training shows nothing of how trainings differ: with it, only tasks may."""
    rng = np.random.default_rng(4)
    found = [estimate(values(rng, 5.0, 60, seeds, world)) for _ in range(300)]
    missed = sum(not each.low <= 5.0 <= each.high for each in found)
    assert 300 * 0.01 <= missed <= most(300, 0.05)


@pytest.mark.parametrize(("seeds", "gap"), [(4, 6.4), (5, 4.0), (8, 3.0)])
def test_a_difference_is_decided_as_often_as_its_power_says(seeds, gap):
    """Of runs with tasks and trainings, whose variances each run estimates for itself."""
    rng = np.random.default_rng(seeds)
    of_tasks, of_seeds = 5.0**2 / 60, 2.0**2 + 15.0**2 / 60
    runs = (
        gap + rng.normal(0, 5.0, (60, 1)) + rng.normal(0, 2.0, (1, seeds)) + rng.normal(0, 15.0, (60, seeds))
        for _ in range(500)
    )
    share = sum(estimation.decided(estimate(run), 0.95) for run in runs) / 500
    expected = estimation.power(gap, of_tasks, of_seeds, seeds, 0.95)
    assert 0.2 < expected < 0.9 and share == pytest.approx(expected, abs=0.07)


def test_power_rises_with_seeds_and_gives_the_seeds_that_are_needed():
    powers = [estimation.power(4.0, 0.3, 8.0, seeds, 0.95) for seeds in range(3, 17)]
    assert powers[0] == 0.0 and powers == sorted(powers)
    needed = estimation.seeds_needed(lambda seeds: estimation.power(4.0, 0.3, 8.0, seeds, 0.95))
    assert powers[needed - 3] >= 0.8 > powers[needed - 4]
    assert estimation.seeds_needed(lambda seeds: estimation.power(1.0, 0.3, 8.0, seeds, 0.95)) is None, "few tasks"


def outcome(values_ts, about):
    found = estimate(values_ts, fixed_tasks=isinstance(about, SizeClaim))
    return verdicts.judge(ClaimTest("it", about, (found,)), 0.95).verdict


def single_run_verdicts(truth, gap, seeds, cases=400):
    """Verdicts on the paper's number, a run from the first of two methods that lie `gap` deviations of a run apart.

    `truth`: the place of our runs, 0 for that method, 1 for the other. The rival's number is a run of the other.
    """
    rng, found = np.random.default_rng(seeds), []
    for _ in range(cases):
        paper, rival = rng.normal(0, 1), gap + rng.normal(0, 1)
        ours = truth * gap + rng.normal(0, 1, (1, seeds)) + np.zeros((50, 1))
        found.append(outcome(ours, claim(value=paper, rival=rival)))
    return {verdict: found.count(verdict) / cases for verdict in dict.fromkeys(found)}


@pytest.mark.parametrize("seeds", [4, 5, 8])
@pytest.mark.parametrize("gap", [0.0, 2.0, 3.5])
def test_a_single_run_of_the_paper_is_judged_wrongly_in_at_most_one_case_of_twenty(gap, seeds):
    assert single_run_verdicts(0, gap, seeds).get("differs", 0.0) <= most(400, 0.05) / 400
    assert single_run_verdicts(1, gap, seeds).get("agrees", 0.0) <= most(400, 0.05) / 400


@pytest.mark.parametrize("truth", [0, 1])
def test_five_seeds_tell_where_the_two_printed_numbers_lie_far_enough_apart(truth):
    """They lie 3.5 deviations of a run apart. Our runs are those of the paper's method, or of the rival."""
    rng, found = np.random.default_rng(7), []
    for _ in range(400):
        paper = rng.normal(0, 1)
        ours = truth * (paper + 3.5) + rng.normal(0, 1, (1, 5)) + np.zeros((50, 1))
        found.append(outcome(ours, claim(value=paper, rival=paper + 3.5)))
    told = 1 - found.count("cannot tell") / 400
    assert told == pytest.approx(estimation.single_run_power(3.5, 1.0, 5, 0.95), abs=0.08)
    assert estimation.seeds_needed(lambda seeds: estimation.single_run_power(3.5, 1.0, seeds, 0.95)) == 8
    # 1.96 + 0.84 deviations of a run are the least.
    assert estimation.seeds_needed(lambda seeds: estimation.single_run_power(2.7, 1.0, seeds, 0.95)) is None


def test_a_share_at_the_end_of_its_range_is_inside_it():
    """Every episode ends at 0 or 1: as sparse as can be, which is what the claim says."""
    share = {"kind": "share", "text": "it says", "place": "section 5", "method": "eto", "env": "webshop"}
    sparse = ShareClaim(**share, outcome="extreme", threshold=0.6, value=95.0, tolerance=5.0)
    assert outcome(np.full((40, 4), 100.0), sparse) == outcome(np.full((40, 4), 90.0), sparse) == "agrees"
    assert outcome(np.full((40, 4), 89.0), sparse) == "differs"
    assert outcome(np.full((40, 3), 100.0), sparse) == "cannot tell"
    assert outcome(np.zeros((40, 4)), claim()) == "cannot tell"  # an order is strict
