"""Small statistics: groups, means, curves, and intervals of shares."""

import math
from collections import defaultdict
from collections.abc import Iterable
from statistics import NormalDist, fmean
from typing import Any, TypeVar

R = TypeVar("R")


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
