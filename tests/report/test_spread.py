import math

import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from coevolve import seeds
from coevolve.config.loading import load_suite
from coevolve.report import stats


def spread(groups, name="test", resamples=4000):
    return stats.spread([np.array(values) for values in groups], resamples=resamples, rng=seeds.generator(0, name))


def test_a_matrix_holds_means_by_task_and_seed_and_nothing_else():
    values = [("a", 0, 1.0), ("a", 0, 0.0), ("b", 1, 0.5), ("other", 0, 9.0), ("a", 7, 9.0)]
    found = stats.matrix(values, ["a", "b"], [0, 1])
    np.testing.assert_array_equal(found, [[0.5, math.nan], [math.nan, 0.5]])


def test_mean_weighs_tasks_and_not_records():
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
    assert found.of_tasks + found.of_seeds / 40 == pytest.approx(expected, rel=0.02)


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
    interval = found.seeds_for_interval(0.06, 0.95)

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
