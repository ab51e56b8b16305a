"""The one estimate: a mean over tasks and trainings, its interval, whether it is decided, and what would decide it.

A task's value is the mean over its records (its seeds), and **every task weighs the same**: the quantity of interest is
the average over instructions, so an episode lost to a broken environment must not make its instruction count less.

With values y[t, s] of T tasks and S seeds the mean's variance is estimated in two parts, as in a two-way table:

* trainings: V_s / S, with V_s the variance of the seeds' means. It includes what is left of task and seed;
* tasks: the variance of the tasks' means over T, less that same residual part, so that it counts once. It is left out
  (`fixed_tasks`) where the quantity is about these tasks alone, as a comparison with a number of the paper is.

**Interval** (`half_width`): half of it is the root of z^2 of the tasks' variance plus t^2 of the trainings', with the
normal quantile z and Student's t of S - 1 degrees of freedom. So it is never narrower than Student's interval of the
means of the trainings. With one seed it is Student's over tasks, because how trainings differ is not known.

**Decision** (`decisions`): a difference is decided if there are `MIN_SEEDS` trainings or more, and the interval
excludes 0, also without any one of the trainings. Why this rule: `benchmarks/intervals.md`.

**A number of the paper** is that of one run. `single_run` is Student's prediction interval of one more run of ours.

`power`, `single_run_power` and `seeds_needed` are about these very rules.
"""

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from coevolve import seeds as seeds_of
from coevolve.config.report import ReportConfig
from coevolve.errors import UserError
from coevolve.records.evaluation import EvalRecord
from coevolve.records.tables import Estimate
from coevolve.report import stats

Quantity = Literal["reward", "success"]
#: Something measured of a task with a seed.
Point = tuple[Hashable, int, float]
Vector = NDArray[np.float64]
#: Values by task (rows) and seed (columns); NaN where there is none.
Matrix = NDArray[np.float64]
F = TypeVar("F", float, Vector)

#: With fewer trainings nothing is decided.
MIN_SEEDS = 4
#: Probability of a decision with `seeds_needed` seeds, and the largest number of seeds that is looked at.
POWER, MOST_SEEDS = 0.8, 200
#: Simulated runs of `power`: its standard error is 0.8 points at most.
CASES = 4000


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


def estimate(
    groups: Sequence[Matrix],
    n: int,
    confidence: float,
    *,
    seeds: Sequence[int] | None = None,
    fixed_tasks: bool = False,
) -> Estimate:
    """The sum over groups of the mean over tasks, of `n` values; groups have tasks of their own and the same seeds.

    `seeds` name the columns (None: 0, 1, ...).

    Every task weighs the same, whatever the number of seeds it was seen with; tasks without a value do not count.
    Raises `UserError` if a group has no value.
    """
    seen_g = [values_ts[~np.isnan(values_ts).all(axis=1)] for values_ts in groups]
    if not seen_g or not all(map(len, seen_g)):
        raise UserError("no evaluation records to average; run the evaluation first.")
    mean = float(np.sum([np.nanmean(values_ts, axis=1).mean() for values_ts in seen_g]))
    effects_g = [_seed_effects(values_ts) for values_ts in seen_g]
    of_tasks = 0.0 if fixed_tasks else sum(map(_task_variance, seen_g, effects_g))
    effects_s = np.sum(effects_g, axis=0)  # NaN for a seed that a group lacks
    named = zip(range(len(effects_s)) if seeds is None else seeds, effects_s, strict=True)
    means = {seed: float(mean + effect) for seed, effect in named if not math.isnan(effect)}
    tasks = sum(map(len, seen_g))
    low, high = _ends(mean, [*means.values()], of_tasks, tasks, confidence)
    return Estimate(
        mean=mean,
        low=low,
        high=high,
        n=n,
        n_tasks=tasks,
        n_seeds=len(means),
        of_tasks=of_tasks,
        of_seeds=variance([*means.values()]) if len(means) > 1 else None,
        seed_means=means,
    )


def of_records(*groups: Sequence[EvalRecord], report: ReportConfig, quantity: Quantity = "reward") -> Estimate:
    """Mean of the groups' means over tasks with its interval; raises `UserError` if a group has no records."""
    points_g = [points(records, quantity) for records in groups]
    seeds = sorted({seed for of_group in points_g for _, seed, _ in of_group})
    matrices = [matrix(of_group, _tasks(of_group), seeds) / len(groups) for of_group in points_g]
    estimated = estimate(matrices, sum(map(len, groups)), report.confidence, seeds=seeds)
    # An interval can leave the range of the quantity: [0, 1], or from -1 on where it does.
    least = 0.0 if all(value >= 0.0 for of_group in points_g for _, _, value in of_group) else -1.0
    ends = {"low": max(least, estimated.low), "high": min(1.0, estimated.high)}
    return estimated.model_copy(update=ends)


def of_means(means: Sequence[float], tasks: int, confidence: float) -> Estimate:
    """The mean of one value per seed, each over as many `tasks`, which do not vary."""
    values_ts = np.repeat([means], tasks, axis=0)
    return estimate([values_ts], values_ts.size, confidence, fixed_tasks=True)


def success_rate(records: Sequence[EvalRecord], report: ReportConfig) -> Estimate:
    """Mean success over tasks, in [0, 1], with its interval; raises `UserError` without records.

    If no record or every record is a success, values do not vary, and the interval is Wilson's of the tasks.
    """
    rate = of_records(records, report=report, quantity="success")
    if 0.0 < rate.mean < 1.0:
        return rate
    low, high = stats.wilson(rate.mean * rate.n_tasks, rate.n_tasks, report.confidence)
    return rate.model_copy(update={"low": low, "high": high})


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


def difference(a: RewardTable, b: RewardTable, report: ReportConfig) -> Estimate:
    """Mean of a minus b, paired by task and seed; `n` counts both's records. Raises `UserError` if they share none."""
    others = {*b.tasks}
    tasks, seeds = [task for task in a.tasks if task in others], sorted({*a.seeds} & {*b.seeds})
    if tasks and seeds:
        (means_a, counts_a), (means_b, counts_b) = a.part(tasks, seeds), b.part(tasks, seeds)
        values_ts, used = means_a - means_b, int(counts_a.sum() + counts_b.sum())
        if not np.isnan(values_ts).all():
            return estimate([values_ts], used, report.confidence, seeds=seeds)
    raise UserError("the two methods share no evaluated task with a seed; evaluate them on the same split.")


def student_quantile(share: float, df: int) -> float:
    """A quantile of Student's distribution."""
    from scipy.special import stdtrit  # takes a tenth of a second

    return float(stdtrit(df, share))


def half_width(of_tasks: float, of_seeds: F, seeds: int, confidence: float) -> F:
    """Half of the interval of a mean over several seeds: normal of the tasks' variance, Student's of the trainings'."""
    share = (1.0 + confidence) / 2.0
    of_mean = student_quantile(share, seeds - 1) ** 2 * of_seeds / seeds
    width: F = (NormalDist().inv_cdf(share) ** 2 * of_tasks + of_mean) ** 0.5
    return width


def variance(means: Sequence[float]) -> float:
    """The unbiased variance of the means of several trainings."""
    return float(np.var(means, ddof=1))


def interval(means: Sequence[float], of_tasks: float, confidence: float) -> tuple[float, float] | None:
    """The interval from the means of several trainings and the variance by tasks; None with one."""
    return _ends(fmean(means), means, of_tasks, 0, confidence) if len(means) > 1 else None


def _ends(mean: float, means: Sequence[float], of_tasks: float, tasks: int, confidence: float) -> tuple[float, float]:
    """The ends of the interval around the mean; of one seed, over tasks."""
    if len(means) > 1:
        half = half_width(of_tasks, variance(means), len(means), confidence)
    else:
        half = student_quantile((1.0 + confidence) / 2.0, tasks - 1) * math.sqrt(of_tasks) if of_tasks else 0.0
    return mean - half, mean + half


def decisions(means_cs: Matrix, of_tasks: float, confidence: float) -> NDArray[np.int64]:
    """What the means of some trainings (columns) decide, by case (rows): 1 above 0, -1 below 0, 0 nothing."""
    cases, seeds = means_cs.shape
    if seeds < MIN_SEEDS:
        return np.zeros(cases, dtype=np.int64)
    mean_c1 = means_cs.mean(axis=1, keepdims=True)
    squares_cs = np.square(means_cs - mean_c1)
    sum_c1 = squares_cs.sum(axis=1, keepdims=True)
    # Of all trainings, and without each one: its mean, and the variance of the others around theirs.
    without_cs = mean_c1 - (means_cs - mean_c1) / (seeds - 1)
    left_cs = np.maximum(0.0, sum_c1 - squares_cs * seeds / (seeds - 1)) / (seeds - 2)
    centres = np.hstack([mean_c1, without_cs])
    halves = np.hstack([
        half_width(of_tasks, sum_c1 / (seeds - 1), seeds, confidence),
        half_width(of_tasks, left_cs, seeds - 1, confidence),
    ])  # fmt: skip
    above, below = (centres > halves).all(axis=1), (centres < -halves).all(axis=1)
    signs: NDArray[np.int64] = np.where(above, 1, np.where(below, -1, 0))
    return signs


def decided(estimated: Estimate, confidence: float) -> int:
    """1 if a difference is decided and above 0, -1 if it is below, 0 if it is not decided.

    So few tasks that the signs of all could agree by chance decide nothing. Neither does an estimate whose own interval
    contains 0, which was drawn in earlier results.
    """
    if 2.0 ** (1 - estimated.n_tasks) > 1.0 - confidence or not _excludes_0(estimated):
        return 0
    means_cs = np.array([[*estimated.seed_means.values()]])
    return int(decisions(means_cs, estimated.of_tasks or 0.0, confidence)[0])


def mark(estimated: Estimate, confidence: float) -> str:
    """` (undecided)` after an interval that excludes 0 without a decision; empty otherwise."""
    return " (undecided)" * (_excludes_0(estimated) and not decided(estimated, confidence))


def _excludes_0(estimated: Estimate) -> bool:
    return estimated.low > 0.0 or estimated.high < 0.0


def power(gap: float, of_tasks: float, of_seeds: float, seeds: int, confidence: float) -> float:
    """The share of simulated runs in which a true difference `gap` is decided with its sign."""
    drawn = seeds_of.generator(0, "power").standard_normal((CASES, MOST_SEEDS + 1))[:, : seeds + 1]
    means_cs = abs(gap) + math.sqrt(of_tasks) * drawn[:, :1] + math.sqrt(of_seeds) * drawn[:, 1:]
    return float((decisions(means_cs, of_tasks, confidence) > 0).mean())


def single_run_width(of_seeds: F, seeds: int, confidence: float) -> F:
    """Half of Student's prediction interval of one more training on the same tasks."""
    return half_width(0.0, of_seeds * (seeds + 1), seeds, confidence)


def single_run(estimated: Estimate, confidence: float) -> tuple[float, float] | None:
    """Student's prediction interval of one more training on these tasks; None with fewer than `MIN_SEEDS`."""
    if estimated.of_seeds is None or estimated.n_seeds < MIN_SEEDS:
        return None
    half = single_run_width(estimated.of_seeds, estimated.n_seeds, confidence)
    return estimated.mean - half, estimated.mean + half


def single_run_power(gap: float, of_seeds: float, seeds: int, confidence: float) -> float:
    """The probability that `single_run` excludes a number at a distance `gap` from another one that is a run's."""
    from scipy.stats import nct

    if seeds < MIN_SEEDS:
        return 0.0
    error = math.sqrt(of_seeds * (1 + 1 / seeds))
    return float(nct.sf(single_run_width(of_seeds, seeds, confidence) / error, seeds - 1, abs(gap) / error))


def seeds_needed(power_of: Callable[[int], float]) -> int | None:
    """The least number of seeds with a probability `POWER` of a decision; None: not even `MOST_SEEDS`."""
    counts = range(MIN_SEEDS, MOST_SEEDS + 1)
    number = bisect_left(counts, POWER, key=power_of)
    return counts[number] if number < len(counts) else None


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
