import math
import os
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from builders import record
from scipy.stats import norm
from scipy.stats import t as student

from coevolve import seeds
from coevolve.config.loading import load_suite
from coevolve.config.report import ReportConfig
from coevolve.errors import UserError
from coevolve.report import stats


def records(rewards_by_task, split="seen"):
    return [
        record(task, reward, split=split, seed=seed)
        for task, rewards in rewards_by_task.items()
        for seed, reward in enumerate(rewards)
    ]


def options(name="test", resamples=2000, confidence=0.95, collapse=0.2):
    report = ReportConfig(bootstrap=resamples, confidence=confidence, collapse=0.2)
    return {"report": report, "rng": seeds.generator(0, name)}


def difference(a, b):
    return stats.difference(stats.RewardTable.of(a), stats.RewardTable.of(b), **options())


def test_interval_agrees_with_the_exact_bootstrap_distribution():
    rewards = {"a": [0.0], "b": [0.3], "c": [0.9], "d": [1.0], "e": [0.45]}
    values = [rewards[task][0] for task in sorted(rewards)]
    exact = [np.mean(draw) for draw in product(values, repeat=len(values))]
    result = stats.estimate(records(rewards), **options(resamples=200_000))
    # The bootstrap's variance divides by T, an unbiased one by T - 1.
    expected = result.mean + np.sqrt(5 / 4) * (np.quantile(exact, [0.025, 0.975]) - result.mean)
    assert [result.low, result.high] == pytest.approx(expected, abs=0.02)


def test_result_depends_on_the_generator_only_and_not_on_the_order_of_records():
    rows = records({f"t{i}": [0.1 * i, 0.05, 0.7 / (i + 1)] for i in range(7)})
    assert stats.estimate(rows, **options()) == stats.estimate(rows[::-1], **options())
    assert stats.estimate(rows[::3], **options()) != stats.estimate(rows[::3], **options("other"))  # of one seed


def test_drawing_in_chunks_changes_nothing(monkeypatch):
    rows = records({f"t{i}": [i / 6] for i in range(7)})
    whole = stats.estimate(rows, **options())
    monkeypatch.setattr(stats, "DRAWS", 50)
    assert stats.estimate(rows, **options()) == whole


def test_one_task_gives_a_point_and_one_seed_an_interval():
    point = stats.estimate(records({"a": [0.4]}), **options())
    assert (point.mean, point.low, point.high, point.n_tasks) == pytest.approx((0.4, 0.4, 0.4, 1))
    one_seed = stats.estimate(records({"a": [0.0], "b": [1.0]}), **options())
    assert one_seed.low < 0.1 and one_seed.high > 0.9 and one_seed.n_seeds == 1


def test_where_no_value_is_missing_the_effects_of_seeds_are_those_of_their_means():
    """For each number of tasks and seeds, also where rounding makes a singular value that is 0 a small number."""
    rng = np.random.default_rng(0)
    for tasks, trainings in product((1, 7, 90, 210, 300), range(1, 11)):
        values_ts = rng.random((tasks, trainings))
        spread = stats.spread([values_ts], resamples=10, rng=rng)
        assert spread.seed_means == pytest.approx(values_ts.mean(axis=0), abs=1e-12), (tasks, trainings)


def test_a_mean_of_groups_weighs_groups_not_tasks_and_is_narrower_than_each():
    """The same task id in two splits is two tasks."""
    few, many = records({"t0": [1.0]}), records({f"t{i}": [0.0] for i in range(9)}, split="unseen")
    result = stats.estimate(few, many, **options())
    assert (result.mean, result.n_tasks, result.n) == (0.5, 10, 10)
    assert stats.estimate(few + many, **options()).n_tasks == 10
    groups = [records({f"t{i}": [i / 9] for i in range(10)}, split) for split in ("seen", "unseen")]
    alone, both = stats.estimate(groups[0], **options()), stats.estimate(*groups, **options())
    assert (both.high - both.low) / (alone.high - alone.low) == pytest.approx(2**-0.5, abs=0.05)


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
        stats.estimate([], **options())
    with pytest.raises(UserError, match="no evaluation records"):
        stats.estimate(records({"a": [1.0]}), [], **options())
    with pytest.raises(UserError, match="share no evaluated task"):
        difference(records({"a": [1.0]}), records({"b": [1.0]}))


def test_an_interval_stays_in_the_range_of_rewards():
    rare = stats.estimate(records({f"t{i}": [float(i == 0)] for i in range(12)}), **options())
    often = stats.estimate(records({f"t{i}": [float(i != 0)] for i in range(12)}), **options())
    assert (rare.low, often.high) == (0.0, 1.0)
    negative = stats.estimate(records({"a": [-0.5], "b": [0.5], "c": [-0.2]}), **options())
    assert -1.0 <= negative.low < 0.0


def of_strings():
    """An estimate and a difference over tasks and seeds."""
    first, other = (
        records({f"task{t}": [((t * t + shift) % 11 + 0.3 * seed) / 12 for seed in range(3)] for t in range(30)})
        for shift in (0, 4)
    )
    return stats.estimate(first, **options(resamples=50)), difference(first, other)


def test_the_interval_does_not_depend_on_the_order_of_sets(root):
    """Python orders a set of strings by hashes that differ from process to process."""
    assert all(each.high - each.low > 0.05 for each in of_strings())
    command = [sys.executable, "-c", "from report.test_stats import of_strings; print(*of_strings())"]
    paths = os.pathsep.join([str(root), str(root / "tests")])
    printed = [
        subprocess.check_output(command, env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": seed}, text=True)
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1] == "{} {}\n".format(*of_strings())


@pytest.mark.parametrize("seeds_", [1, 4])
def test_the_variance_of_a_mean_over_tasks_is_unbiased(seeds_):
    """With four tasks a variance that divides by T is a quarter too small."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(2000):
        values_ts = rng.normal(0.0, 1.0, (4, 1)) + rng.normal(0.0, 0.1, (4, seeds_))
        found.append(stats.spread([values_ts], resamples=1, rng=rng).of_tasks)
    assert np.mean(found) == pytest.approx(1.0 / 4, rel=0.05)


def spread(groups, name="test", resamples=4000):
    return stats.spread([np.array(values) for values in groups], resamples=resamples, rng=seeds.generator(0, name))


def test_a_matrix_holds_means_by_task_and_seed_and_its_mean_weighs_tasks():
    values = [("a", 0, 1.0), ("a", 0, 0.0), ("b", 1, 0.5), ("other", 0, 9.0), ("a", 7, 9.0)]
    found = stats.matrix(values, ["a", "b"], [0, 1])
    np.testing.assert_array_equal(found, [[0.5, math.nan], [math.nan, 0.5]])
    found = spread([[[0.0, 0.0], [1.0, math.nan], [math.nan, math.nan]]])
    assert (found.mean, found.n_tasks, found.n_seeds) == (0.5, 2, 2)


def test_draws_vary_as_the_mean_does():
    """Against the variance of a balanced two-way design, worked out by hand."""
    rng = np.random.default_rng(1)
    values_ts = rng.normal(0, 1.0, (60, 1)) + rng.normal(0, 0.5, (1, 40)) + rng.normal(0, 0.7, (60, 40))
    found = spread([values_ts], resamples=40_000)
    by_task, by_seed = values_ts.mean(axis=1), values_ts.mean(axis=0)
    left = values_ts - by_task[:, None] - by_seed + values_ts.mean()
    residual = (left**2).sum() / (59 * 39) / (60 * 40)
    expected = by_task.var(ddof=1) / 60 + by_seed.var(ddof=1) / 40 - residual
    assert found.draws_b.var() == pytest.approx(expected, rel=0.08)
    assert found.of_tasks + found.of_seeds / 40 == pytest.approx(expected, rel=1e-9)


def test_one_seed_shows_no_variance_between_trainings():
    found = spread([[[0.0], [0.4], [0.9]]])
    assert found.of_seeds is None and found.of_tasks > 0
    assert found.seeds_needed(0.1, 0.05, 0.8) == 3


def test_what_is_left_of_task_and_seed_counts_once():
    """Pure chance: it is in the variance between trainings, and so not in that of tasks again."""
    values_ts = np.random.default_rng(1).normal(0, 1.0, (400, 3))
    found = spread([values_ts])
    assert found.of_seeds == pytest.approx(values_ts.mean(axis=0).var(ddof=1))
    assert found.of_tasks < 0.2 * values_ts.mean(axis=1).var(ddof=1) / 400


def test_tasks_that_are_fixed_leave_the_trainings_alone():
    """Student's interval of the trainings' means, whatever the tasks."""
    values_ts = np.random.default_rng(2).normal(0, 1.0, (30, 1)) + np.array([[0.1, 0.3, 0.2, 0.6]])
    found = stats.spread([values_ts], resamples=2000, rng=np.random.default_rng(0), fixed_tasks=True)
    half = student.ppf(0.975, 3) * values_ts.mean(axis=0).std(ddof=1) / 2
    mean = values_ts.mean()
    assert found.interval(0.95) == pytest.approx((mean - half, mean + half), abs=2e-3)
    assert found.of_tasks == 0.0


def test_p_values_are_shares_of_draws_and_never_below_what_the_tasks_allow():
    found = spread([[[0.1], [0.2], [0.3]]])
    assert found.below(0.0) == 2.0**-3
    assert found.below(0.4) == 1.0 and found.above(0.2) > 0.3
    nothing = spread([[[0.0]] * 30])
    assert nothing.below(0.0) == nothing.above(0.0) == 1.0
    assert found.below(-math.inf) == found.above(math.inf) == 0.0
    many = spread([np.full((50, 1), 0.2)], resamples=999)
    assert many.below(0.0) == pytest.approx(1 / 1000)


def test_seeds_needed_solves_its_inequality():
    found = stats.Spread(0.1, np.zeros(10), 100, 2, of_tasks=1e-4, of_seeds=4e-3)
    count = found.seeds_needed(0.06, 0.05, 0.8)

    def variance_seen(seeds):
        return (student.ppf(0.975, seeds - 1) + norm.ppf(0.8)) ** 2 * (1e-4 + 4e-3 / seeds)

    assert variance_seen(count) <= 0.06**2 < variance_seen(count - 1)
    interval = found.seeds_needed(0.06, 0.05)

    def half_width(seeds):
        return student.ppf(0.975, seeds - 1) * math.sqrt(1e-4 + 4e-3 / seeds)

    assert half_width(interval) <= 0.06 < half_width(interval - 1)
    assert found.seeds_needed(0.02, 0.05, 0.8) is None
    assert found.seeds_needed(10.0, 0.05, 0.8) == 3


@pytest.mark.parametrize("trainings", [1, 3, 8])
def test_another_generator_moves_an_interval_by_little(trainings):
    """With the draws of the standard settings, as their comment says: three standard deviations of an end."""
    rng = np.random.default_rng(6)
    values_ts = rng.normal(0, 0.3, (100, 1)) + rng.normal(0, 0.1, (1, trainings)) + rng.normal(0, 0.2, (100, trainings))
    draws = load_suite("smoke").report.bootstrap
    ends = np.array([spread([values_ts], str(name), draws).interval(0.95) for name in range(10)])
    half = (ends[:, 1] - ends[:, 0]).mean() / 2
    assert np.abs(ends - ends.mean(axis=0)).max() < 3 * 0.017 * half


def test_holm_by_hand():
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0]
    assert stats.holm([]) == []
