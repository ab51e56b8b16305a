"""Looks at the results before all seeds are there, and the level that each may use.

If nothing differs, tests at 5 % after 4, 6 and 8 seeds find a difference in 9 % of cases. So a suite states its looks
(`looks`), and each has a level of its own, by the spending function of Lan and DeMets (1983) that is like O'Brien and
Fleming's bounds: little for early looks, nearly all for the last.
"""

from collections.abc import Sequence

import numpy as np

from coevolve.config.report import ReportConfig
from coevolve.config.suite import Suite

#: Points of the grid on which the distribution of a mean is followed from look to look.
GRID = 801


def levels(looks: Sequence[int], alpha: float) -> dict[int, float]:
    """The two-sided level of each look, by its number of seeds, so that all together err in a share `alpha`.

    The mean's path is that of a normal random walk; with the levels of Student's intervals that holds approximately.
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    times = np.array(looks) / looks[-1]
    spent_k = 4.0 * norm.sf(norm.isf(alpha / 4.0) / np.sqrt(times))
    x = np.linspace(-8.0, 8.0, GRID)
    results: dict[int, float] = {}
    density_x, before = np.zeros(GRID), 0.0
    density_x[GRID // 2] = 1.0
    for count, time, spent in zip(looks, times, np.diff(spent_k, prepend=0.0), strict=True):
        step = np.sqrt(time - before)

        def beyond(bound: float, *, density_x: np.ndarray = density_x, step: float = step) -> float:
            return float(density_x @ (norm.sf((bound - x) / step) + norm.sf((bound + x) / step)))

        bound = brentq(lambda value, share=spent: beyond(value) - share, 1e-6, 8.0)
        results[count] = float(2.0 * norm.sf(bound / np.sqrt(time)))
        density_x = norm.pdf((x[:, None] - x) / step) @ density_x * (x[1] - x[0]) / step
        density_x[np.abs(x) > bound] = 0.0
        before = time
    return results


def report_of(suite: Suite) -> ReportConfig:
    """The settings of intervals at the present look: the confidence that is left to it, if there are several."""
    alpha, seeds = 1.0 - suite.report.confidence, len(suite.seeds)
    if len(suite.looks) < 2 or seeds > suite.looks[-1]:
        return suite.report
    level = levels(suite.looks, alpha)[min(look for look in suite.looks if look >= seeds)]
    return suite.report.model_copy(update={"confidence": 1.0 - level})


def remark(suite: Suite) -> str:
    """The level of a declared look, or a warning of a look that was not declared; empty after the only one."""
    seeds, stated = len(suite.seeds), ", ".join(map(str, suite.looks))
    if suite.looks and seeds < suite.looks[-1] and seeds not in suite.looks:
        return (
            f"**Unfinished: {seeds} of {suite.looks[-1]} seeds, and no look was declared here (`looks: [{stated}]`). "
            "Looking early and going on makes false differences more frequent than the intervals say.**"
        )
    if len(suite.looks) > 1:
        return f"Looks declared after {stated} seeds: intervals have {report_of(suite).confidence:.2%} here, not 95 %."
    return ""
