"""Means over evaluated episodes, with intervals over tasks and over trainings.

A task's value is the mean over its records (its seeds), and **every task weighs the same**: the quantity of interest is
the average over instructions, so an episode lost to a broken environment must not make its instruction count less.

A comparison of methods is about other instructions and other trainings: both vary. A comparison of a cell with the
paper's is about the instructions that the paper used: only trainings vary (`fixed_tasks`).

With values y[t, s] of T tasks and S seeds the mean's variance is estimated in two parts, as in a two-way table:

* trainings: V_s / S, with V_s the variance of the seeds' means. It includes what is left of task and seed;
* tasks: the variance of the tasks' means over T, less that same residual part, so that it counts once.

Draws of the mean are its task part, a bootstrap over tasks scaled to that variance, plus sqrt(V_s / S) times Student's
distribution with S - 1 degrees of freedom. Each of its quantiles (b + 1/2) / B is taken once, in random order: with few
seeds its tails are so long that random draws move the interval's ends by several per cent. With S = 1 the variance of
trainings is unknown, and draws vary by tasks alone. In simulations (`tests/report/test_truth.py`) a true difference of
0 is called a difference in at most 5 % of cases with any number of seeds from 3 on, whichever part dominates.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from coevolve.config.report import ReportConfig
from coevolve.errors import UserError
from coevolve.records.evaluation import EvalRecord
from coevolve.records.tables import Estimate

R = TypeVar("R")
Quantity = Literal["reward", "success"]
#: Something measured of a task with a seed.
Point = tuple[Hashable, int, float]
Vector = NDArray[np.float64]
#: Values by task (rows) and seed (columns); NaN where there is none.
Matrix = NDArray[np.float64]
P = TypeVar("P", float, Vector)

#: Largest number of task draws held in memory at once.
DRAWS = 2**22
#: With fewer trainings nothing is decided: their variance is not known.
MIN_SEEDS = 3


@dataclass(frozen=True)
class Spread:
    """A mean and draws of the true mean, in the quantity's units.

    The variance of the mean over S seeds is `of_tasks + of_seeds / S`; one seed does not show `of_seeds` (None).
    `seed_means` are the means of the trainings, in order of their seeds. `fixed_tasks`: tasks did not vary.
    """

    mean: float
    draws_b: Vector
    n_tasks: int
    n_seeds: int
    of_tasks: float
    of_seeds: float | None
    seed_means: tuple[float, ...] = ()
    fixed_tasks: bool = False

    def interval(self, confidence: float) -> tuple[float, float]:
        """Ends of the interval that holds this share of the draws."""
        low, high = np.quantile(self.draws_b, [(1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0])
        return float(low), float(high)

    def below(self, value: float, *, closed: bool = False) -> float:
        """One-sided p-value of "the true mean is larger than `value`" (or equal, if `closed`), from 2**-tasks on."""
        others = self.draws_b < value if closed else self.draws_b <= value
        return self._p(int(np.count_nonzero(others))) if value > -math.inf else 0.0

    def above(self, value: float, *, closed: bool = False) -> float:
        """One-sided p-value of "the true mean is smaller than `value`" (or equal, if `closed`)."""
        others = self.draws_b > value if closed else self.draws_b >= value
        return self._p(int(np.count_nonzero(others))) if value < math.inf else 0.0

    def _p(self, count: int) -> float:
        least = 0.0 if self.fixed_tasks else 2.0**-self.n_tasks
        return max((count + 1) / (len(self.draws_b) + 1), least)

    def single_run(self, confidence: float) -> tuple[float, float] | None:
        """Student's prediction interval of one more training's mean on these tasks; None with too few trainings."""
        if self.of_seeds is None or self.n_seeds < MIN_SEEDS:
            return None
        half = student_quantile((1.0 + confidence) / 2.0, self.n_seeds - 1) * self._single_run_deviation
        return self.mean - half, self.mean + half

    def single_run_p(self, value: float) -> float:
        """Two-sided p-value of "`value` is the mean of one more training on these tasks"."""
        from scipy.special import stdtr

        distance, deviation = abs(value - self.mean), self._single_run_deviation
        if deviation == 0.0:
            return float(distance < 1e-9)
        return float(2.0 * stdtr(self.n_seeds - 1, -distance / deviation))

    @property
    def _single_run_deviation(self) -> float:
        return math.sqrt((self.of_seeds or 0.0) * (1.0 + 1.0 / self.n_seeds))

    def seeds_for_single_run(self, gap: float, level: float, power: float) -> int | None:
        """Seeds with which `single_run` excludes a number at a distance `gap` from another one that is a run's.

        Approximation: (t + z)^2 of_seeds (1 + 1 / S) <= gap^2. None: no number of seeds does.
        """
        if self.of_seeds is None:
            return MIN_SEEDS
        p, z = 1.0 - level / 2.0, NormalDist().inv_cdf(power)
        enough = (
            seeds
            for seeds in range(MIN_SEEDS, 1000)
            if (student_quantile(p, seeds - 1) + z) ** 2 * self.of_seeds * (1.0 + 1.0 / seeds) <= gap**2
        )
        return next(enough, None)

    def seeds_needed(self, gap: float, level: float, power: float = 0.5) -> int | None:
        """Seeds with which a true distance `gap` would be seen at a two-sided `level` with this `power`.

        With a power of 0.5 `gap` is half of the interval's width. None: no number of them, since the tasks are too few
        (or the gap is 0). One seed does not show what more would give: then it is `MIN_SEEDS`, which is the least.
        Approximation: (t + z)^2 (of_tasks + of_seeds / S) <= gap^2, with Student's quantile t of S - 1 degrees of
        freedom.
        """
        if self.of_seeds is None:
            return MIN_SEEDS
        p, z = 1.0 - level / 2.0, NormalDist().inv_cdf(power)
        if gap**2 <= self.of_tasks * (NormalDist().inv_cdf(p) + z) ** 2:
            return None
        for seeds in range(MIN_SEEDS, 10_000):
            variance = self.of_tasks + self.of_seeds / seeds
            if (student_quantile(p, seeds - 1) + z) ** 2 * variance <= gap**2:
                return seeds
        return None


def student_quantile(p: P, df: int) -> P:
    """Quantiles of Student's distribution at the shares `p`, one or several."""
    from scipy.special import stdtrit  # takes a tenth of a second, and one seed needs none of it

    quantiles: P = stdtrit(df, p)
    return quantiles


def half_width(of_tasks: float, of_seeds: float, seeds: int, confidence: float) -> float:
    """About half of the width of `spread`'s interval: normal of the tasks' variance, Student's of the trainings'."""
    share = (1.0 + confidence) / 2.0
    of_mean = student_quantile(share, seeds - 1) * math.sqrt(of_seeds / seeds)
    return math.hypot(NormalDist().inv_cdf(share) * math.sqrt(of_tasks), of_mean)


def student_interval(values: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Student's interval of the mean of one value per seed; None with fewer than `MIN_SEEDS`."""
    if len(values) < MIN_SEEDS:
        return None
    mean, quantile = fmean(values), student_quantile((1.0 + confidence) / 2.0, len(values) - 1)
    half = quantile * stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def mean_of(values: Iterable[float]) -> float | None:
    """The mean of the values; None without any."""
    numbers = list(values)
    return fmean(numbers) if numbers else None


def group_by(rows: Iterable[R], *fields: str) -> dict[tuple[Any, ...], list[R]]:
    """The rows that agree in all `fields`, by their values, in order of first appearance."""
    groups: dict[tuple[Any, ...], list[R]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in fields), []).append(row)
    return groups


def mean_curve(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """(x, mean of the values at x), by x."""
    values: defaultdict[float, list[float]] = defaultdict(list)
    for x, y in points:
        values[x].append(y)
    return [(x, fmean(of_x)) for x, of_x in sorted(values.items())]


def points(records: Iterable[EvalRecord], quantity: Quantity = "reward") -> list[Point]:
    """A quantity of each record (a success is 1) with its task and seed, for `matrix`."""
    return [((record.split, record.task_id), record.seed, float(getattr(record, quantity))) for record in records]


def matrix(values: Iterable[Point], tasks: Sequence[Hashable], seeds: Sequence[int]) -> Matrix:
    """Mean value by task and seed, NaN where there is none; shape (tasks, seeds); others do not count."""
    row = {task: index for index, task in enumerate(tasks)}
    column = {seed: index for index, seed in enumerate(seeds)}
    grouped: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    for task, seed, value in values:
        if task in row and seed in column:
            grouped[row[task], column[seed]].append(value)
    values_ts: Matrix = np.full((len(tasks), len(seeds)), np.nan)
    for index, group in grouped.items():
        # `fmean` sums exactly: the mean does not depend on the order in which episodes ended.
        values_ts[index] = fmean(group)
    return values_ts


def spread(groups: Sequence[Matrix], *, resamples: int, rng: np.random.Generator, fixed_tasks: bool = False) -> Spread:
    """The sum over groups of the mean over tasks, with draws; groups have tasks of their own and the same seeds.

    Every task weighs the same, whatever the number of seeds it was seen with; tasks without a value do not count.
    Raises `UserError` if a group has no value.
    """
    seen_g = [values_ts[~np.isnan(values_ts).all(axis=1)] for values_ts in groups]
    if not seen_g or not all(map(len, seen_g)):
        raise UserError("no evaluation records to average; run the evaluation first.")
    means_g = [np.nanmean(values_ts, axis=1) for values_ts in seen_g]
    mean = float(np.sum([means_t.mean() for means_t in means_g]))
    effects_g = [_seed_effects(values_ts) for values_ts in seen_g]
    effects_s = np.sum(effects_g, axis=0)
    variances_g = [
        0.0 if fixed_tasks else _task_variance(*of_group) for of_group in zip(seen_g, effects_g, strict=True)
    ]
    draws_b = np.full(resamples, mean)
    for means_t, variance in zip(means_g, variances_g, strict=True):
        draws_b += _task_draws(means_t, variance, resamples, rng)
    whole_s = effects_s[~np.isnan(effects_s)]  # of the seeds that every group has
    of_seeds = float(whole_s.var(ddof=1)) if len(whole_s) > 1 else None
    if of_seeds is not None:
        shares_b = (np.arange(resamples) + 0.5) / resamples
        draws_b += math.sqrt(of_seeds / len(whole_s)) * rng.permutation(student_quantile(shares_b, len(whole_s) - 1))
    return Spread(
        mean=mean,
        draws_b=draws_b,
        n_tasks=sum(map(len, means_g)),
        n_seeds=len(whole_s),
        of_tasks=sum(variances_g),
        of_seeds=of_seeds,
        seed_means=tuple(float(mean + effect) for effect in effects_s),
        fixed_tasks=fixed_tasks,
    )


def success_rate(records: Sequence[EvalRecord], report: ReportConfig, rng: np.random.Generator) -> Estimate:
    """Mean success over tasks, in [0, 1], with its interval; raises `UserError` without records.

    If no record or every record is a success, draws do not vary, and the interval is Wilson's of the tasks.
    """
    rate = estimate(records, report=report, rng=rng, quantity="success")
    if 0.0 < rate.mean < 1.0:
        return rate
    low, high = wilson(rate.mean * rate.n_tasks, rate.n_tasks, report.confidence)
    return rate.model_copy(update={"low": low, "high": high})


def estimate(
    *groups: Sequence[EvalRecord], report: ReportConfig, rng: np.random.Generator, quantity: Quantity = "reward"
) -> Estimate:
    """Mean of the groups' means over tasks with its interval; raises `UserError` if a group has no records."""
    points_g = [points(records, quantity) for records in groups]
    seeds = sorted({seed for of_group in points_g for _, seed, _ in of_group})
    matrices = [matrix(of_group, _tasks(of_group), seeds) / len(groups) for of_group in points_g]
    spread_of_mean = spread(matrices, resamples=report.bootstrap, rng=rng)
    estimated = as_estimate(spread_of_mean, sum(map(len, groups)), report.confidence, seeds)
    # Draws are scaled, so their quantiles can leave the range of the quantity: [0, 1], or from -1 on where it does.
    least = 0.0 if all(value >= 0.0 for of_group in points_g for _, _, value in of_group) else -1.0
    ends = {"low": max(least, estimated.low), "high": min(1.0, estimated.high)}
    return estimated.model_copy(update=ends)


@dataclass(frozen=True)
class RewardTable:
    """Mean rewards and numbers of records by task (rows, sorted) and seed (columns, sorted); NaN without a record."""

    tasks: Sequence[Hashable]
    seeds: Sequence[int]
    means_ts: Matrix
    counts_ts: Matrix

    @classmethod
    def of(cls, records: Iterable[EvalRecord]) -> Self:
        """The table of some records."""
        of_records = points(records)
        tasks, seeds = _tasks(of_records), sorted({seed for _, seed, _ in of_records})
        counts = Counter((task, seed) for task, seed, _ in of_records)
        counts_ts = np.reshape([counts[task, seed] for task in tasks for seed in seeds], (len(tasks), len(seeds)))
        return cls(tasks, seeds, matrix(of_records, tasks, seeds), counts_ts)

    def repeated(self, seeds: Sequence[int]) -> Self:
        """The table of a single policy, whose one column stands for each of these seeds."""
        columns = [np.repeat(each_ts, len(seeds), axis=1) for each_ts in (self.means_ts, self.counts_ts)]
        return type(self)(self.tasks, seeds, *columns)

    def part(self, tasks: Sequence[Hashable], seeds: Sequence[int]) -> tuple[Matrix, Matrix]:
        """Means and numbers of some of the tasks and seeds."""
        row = {task: index for index, task in enumerate(self.tasks)}
        chosen = np.ix_([row[task] for task in tasks], [self.seeds.index(seed) for seed in seeds])
        return self.means_ts[chosen], self.counts_ts[chosen]


def difference(a: RewardTable, b: RewardTable, report: ReportConfig, rng: np.random.Generator) -> Estimate:
    """Mean of a minus b, paired by task and seed; `n` counts both's records. Raises `UserError` if they share none."""
    others = {*b.tasks}
    tasks, seeds = [task for task in a.tasks if task in others], sorted({*a.seeds} & {*b.seeds})
    if tasks and seeds:
        (means_a, counts_a), (means_b, counts_b) = a.part(tasks, seeds), b.part(tasks, seeds)
        values_ts, used = means_a - means_b, int(counts_a.sum() + counts_b.sum())
        if not np.isnan(values_ts).all():
            of_mean = spread([values_ts], resamples=report.bootstrap, rng=rng)
            return as_estimate(of_mean, used, report.confidence, seeds)
    raise UserError("the two methods share no evaluated task with a seed; evaluate them on the same split.")


def as_estimate(spread: Spread, n: int, confidence: float, seeds: Sequence[int] = ()) -> Estimate:
    """The mean of `n` values with its interval, and the mean of each of the spread's `seeds` if they are given."""
    low, high = spread.interval(confidence)
    same = {name: getattr(spread, name) for name in ("mean", "n_tasks", "n_seeds", "of_tasks", "of_seeds")}
    means = {seed: mean for seed, mean in zip(seeds, spread.seed_means, strict=False) if not math.isnan(mean)}
    return Estimate(low=low, high=high, n=n, seed_means=means, **same)


def wilson(successes: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's (1927) interval of a share, in [0, 1]; it has a width also where no task, or every task, succeeds."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share, scale = successes / n, 1 + z**2 / n
    centre = (share + z**2 / (2 * n)) / scale
    half = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)) / scale
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)


def newcombe(successes_a: float, n_a: int, successes_b: float, n_b: int) -> tuple[float, float]:
    """Newcombe's (1998) 95 % interval of share b minus share a, from Wilson's of each; in [-1, 1]."""
    a, b = successes_a / n_a, successes_b / n_b
    (low_a, high_a), (low_b, high_b) = wilson(successes_a, n_a), wilson(successes_b, n_b)
    return b - a - math.hypot(b - low_b, high_a - a), b - a + math.hypot(high_b - b, a - low_a)


def pooled_error(successes_a: float, n_a: int, successes_b: float, n_b: int) -> float:
    """Standard error of the difference of two shares, if the true ones are equal."""
    pooled = (successes_a + successes_b) / (n_a + n_b)
    return math.sqrt(pooled * (1 - pooled) * (1 / n_a + 1 / n_b))


def two_sided_p(difference: float, error: float) -> float:
    """Two-sided p-value of a true difference of 0, if it is normal with this standard error; 1 without an error."""
    return math.erfc(abs(difference) / error / math.sqrt(2)) if error else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) adjusted p-values, in the order given: a claim counts at a level if its p-value is no larger."""
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, (len(p_values) - rank) * p_values[index])
        adjusted[index] = min(1.0, largest)
    return adjusted


def _tasks(values: Sequence[Point]) -> list[Hashable]:
    return sorted({task for task, _, _ in values}, key=str)


def _task_variance(values_ts: Matrix, effects_s: Vector) -> float:
    """The part of the mean's variance that comes from the choice of tasks, without what is left of task and seed."""
    if len(values_ts) < 2:
        return 0.0
    seen_ts = ~np.isnan(values_ts)
    without_seeds_ts = values_ts - effects_s
    means_t = np.nanmean(without_seeds_ts, axis=1)
    degrees = seen_ts.sum() - len(means_t) - seen_ts.any(axis=0).sum() + 1
    left_of_cell = np.nansum(np.square(without_seeds_ts - means_t[:, None])) / degrees if degrees > 0 else 0.0
    residual = left_of_cell * np.mean(1.0 / seen_ts.sum(axis=1))
    return max(0.0, float(means_t.var(ddof=1) - residual)) / len(means_t)


def _task_draws(means_t: Vector, variance: float, resamples: int, rng: np.random.Generator) -> Vector:
    """Bootstrap draws over tasks, centred at 0 and scaled to `variance`; shape (resamples,)."""
    tasks, of_bootstrap = len(means_t), float(means_t.var()) / len(means_t)
    if variance == 0.0 or of_bootstrap == 0.0:
        return np.zeros(resamples)
    rows = max(1, DRAWS // tasks)
    sizes = [min(rows, resamples - start) for start in range(0, resamples, rows)]
    draws = [means_t[rng.integers(tasks, size=(size, tasks), dtype=np.int32)].mean(axis=1) for size in sizes]
    centred: Vector = np.concatenate(draws) - means_t.mean()
    return math.sqrt(variance / of_bootstrap) * centred


def _seed_effects(values_ts: Matrix) -> Vector:
    """Least-squares effects e of the seeds in v = m + e + rest, m of the task, with mean 0; shape (seeds,).

    NaN for a seed without a value. Seeds have values on different tasks, for instance on those where a policy failed.
    """
    seen_ts = ~np.isnan(values_ts)
    counts_t, counts_s = seen_ts.sum(axis=1), seen_ts.sum(axis=0)
    left_s = np.nansum(values_ts - np.nanmean(values_ts, axis=1, keepdims=True), axis=0)
    # The normal equations without m; the solution of least norm has mean 0 where the seeds have tasks in common.
    shared_ss = np.diag(counts_s) - seen_ts.T @ (seen_ts / counts_t[:, None])
    # Its smallest singular value is 0 but for rounding: with numpy's own `rcond` rounding would shift all effects.
    effects_s: Vector = np.linalg.lstsq(shared_ss, left_s, rcond=1e-9)[0]
    return np.where(counts_s > 0, effects_s, np.nan)
