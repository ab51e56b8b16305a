"""Statistics of shares: k successes of n tasks."""

from __future__ import annotations

import math
from statistics import NormalDist


def wilson(successes: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's (1927) interval of a share, in [0, 1]; it has a width also where no task, or every task, succeeds."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share, scale = successes / n, 1 + z**2 / n
    centre = (share + z**2 / (2 * n)) / scale
    half = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)) / scale
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)


def newcombe(
    successes_a: float, n_a: int, successes_b: float, n_b: int, confidence: float = 0.95
) -> tuple[float, float]:
    """Newcombe's (1998) interval of share b minus share a, from Wilson's of each; in [-1, 1]."""
    a, b = successes_a / n_a, successes_b / n_b
    (low_a, high_a), (low_b, high_b) = wilson(successes_a, n_a, confidence), wilson(successes_b, n_b, confidence)
    return b - a - math.hypot(b - low_b, high_a - a), b - a + math.hypot(high_b - b, a - low_a)


def two_proportion_p(successes_a: float, n_a: int, successes_b: float, n_b: int) -> float:
    """Two-sided p-value of equal shares: the z-test with the pooled share; 1 where all tasks have one outcome."""
    error = pooled_error(successes_a, n_a, successes_b, n_b)
    return two_sided_p(successes_a / n_a - successes_b / n_b, error) if error else 1.0


def pooled_error(successes_a: float, n_a: int, successes_b: float, n_b: int) -> float:
    """Standard error of the difference of two shares, if the true ones are equal."""
    pooled = (successes_a + successes_b) / (n_a + n_b)
    return math.sqrt(pooled * (1 - pooled) * (1 / n_a + 1 / n_b))


def two_sided_p(difference: float, error: float) -> float:
    """Two-sided p-value of a difference of 0 from a normal distribution with this standard error."""
    return math.erfc(abs(difference) / error / math.sqrt(2))


def smallest_visible(error: float) -> float:
    """The smallest true difference that a two-sided test at level 5 % finds with 80 % power, in units of `error`."""
    normal = NormalDist()
    return error * (normal.inv_cdf(0.975) + normal.inv_cdf(0.8))
