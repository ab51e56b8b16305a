"""Flags beside an interval: the exact p-value of the seeds' signs, and trainings that collapsed.

No rule for a few seeds repairs a method whose trainings collapse now and then (`benchmarks/intervals.md`).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from coevolve.records.tables import Estimate
from coevolve.report import estimation
from coevolve.report.figure3 import Point, curve
from coevolve.report.stats import group_by

#: Numbers of seeds with which the exact test of signs can be significant at 5 % (its least p-value is 2 / 2^S), and
#: takes no time.
SIGN_FLIP_SEEDS = range(6, 17)


class Collapses(NamedTuple):
    """The trainings of one method in one iteration, by seed, and the seeds whose policy lost the threshold or more."""

    env: str
    method: str
    iteration: int
    seeds: tuple[int, ...]
    collapsed: tuple[int, ...]

    def interval(self) -> tuple[float, float]:
        """Clopper and Pearson's 95 % interval of the share of trainings that collapse."""
        from scipy.stats import binomtest  # takes a second

        low, high = binomtest(len(self.collapsed), len(self.seeds)).proportion_ci(0.95, method="exact")
        return float(low), float(high)


def collapses(points: Sequence[Point], threshold: float) -> list[Collapses]:
    """Every training of Figure 3's curves, by environment, method and iteration, against the policy it starts from."""
    trainings = []
    for (env,), of_env in group_by(points, "env").items():
        for method in dict.fromkeys(point.method for point in of_env if point.iteration):
            means = {
                iteration: _seed_means(of_iteration)
                for (iteration,), of_iteration in group_by(curve(of_env, method), "iteration").items()
            }
            for before, after in zip(sorted(means), sorted(means)[1:], strict=False):
                losses = {s: means[before][s] - reward for s, reward in means[after].items() if s in means[before]}
                lost = tuple(seed for seed, loss in losses.items() if loss >= threshold)
                trainings += [Collapses(env, method, after, tuple(losses), lost)] if losses else []
    return trainings


def _seed_means(points: Sequence[Point]) -> dict[int, float]:
    """The mean of each seed over the tasks of all splits."""
    estimates = [point.estimate for point in points]
    seeds = set.intersection(*({*each.seed_means} for each in estimates))
    tasks = sum(each.n_tasks for each in estimates)
    return {seed: sum(each.n_tasks * each.seed_means[seed] for each in estimates) / tasks for seed in sorted(seeds)}


def sign_flip_p(means: Sequence[float]) -> float | None:
    """Exact two-sided p-value of a mean of 0 if the seeds' signs are exchangeable: no distribution is assumed.

    None unless there are `SIGN_FLIP_SEEDS`.
    """
    if len(means) not in SIGN_FLIP_SEEDS:
        return None
    from scipy.stats import permutation_test

    tested = permutation_test(
        (means,), lambda x, axis: x.mean(axis=axis), permutation_type="samples", n_resamples=math.inf, vectorized=True
    )
    return float(tested.pvalue)


def conditional(estimate: Estimate, collapsed: Collection[int], confidence: float) -> tuple[float, float, float] | None:
    """Mean and interval over the trainings that did not collapse; None if none collapsed, or one is left."""
    means = [mean for seed, mean in estimate.seed_means.items() if seed not in collapsed]
    if len(means) == len(estimate.seed_means):
        return None
    ends = estimation.interval(means, estimate.of_tasks or 0.0, confidence)
    return ends and (fmean(means), *ends)


def collapsed_seeds(trainings: Sequence[Collapses]) -> Mapping[tuple[str, str], frozenset[int]]:
    """The seeds in which any training of a method collapsed, by environment and method."""
    keys = {(each.env, each.method) for each in trainings}
    return {
        key: frozenset(seed for each in trainings if (each.env, each.method) == key for seed in each.collapsed)
        for key in keys
    }
