"""Looks: their levels are the published ones, and what was not declared is said first."""

import numpy as np
import pytest
from scipy.stats import norm, t

from coevolve.config.loading import load_suite
from coevolve.report import looks


def test_levels_are_those_of_lan_and_demets():
    """Bounds of three equal looks at 5 %, two-sided, with the spending function like O'Brien and Fleming's."""
    bounds = [norm.isf(level / 2) for level in looks.levels([4, 8, 12], 0.05).values()]
    assert bounds == pytest.approx([3.7103, 2.5114, 1.9930], abs=5e-4)
    assert looks.levels([5], 0.05)[5] == pytest.approx(0.05)


def test_declared_looks_keep_the_level_of_student_intervals():
    rng, decided = np.random.default_rng(0), {"plain": 0, "declared": 0}
    levels = looks.levels([4, 6, 8], 0.05)
    cases = 4000
    values = rng.normal(size=(cases, 8))
    p = {n: 2 * t.sf(abs(v.mean(1)) / v.std(1, ddof=1) * n**0.5, n - 1) for n in (4, 6, 8) for v in [values[:, :n]]}
    decided = {name: np.any([p[n] <= level for n, level in of.items()], axis=0).mean()
               for name, of in (("plain", dict.fromkeys(levels, 0.05)), ("declared", levels))}  # fmt: skip
    assert decided["plain"] > 0.08
    assert decided["declared"] <= 0.05 + 3.1 * (0.05 * 0.95 / cases) ** 0.5


def test_a_suite_states_its_seeds_before_it_runs():
    whole, begun = (load_suite("science", overrides) for overrides in ([], ["seeds=[0, 1, 2, 3]"]))
    assert (whole.looks, begun.looks) == ([8], [8])
    assert looks.remark(whole) == "" and looks.report_of(whole) == whole.report
    assert looks.remark(begun).startswith("**Unfinished: 4 of 8 seeds, and no look was declared here (`looks: [8]`)")
    assert load_suite("paper", ["seeds=[0, 1, 2]"]).looks == [3]
    declared = load_suite("science", ["seeds=[0, 1, 2, 3]", "looks=[4, 6, 8]"])
    assert looks.report_of(declared).confidence == pytest.approx(1 - looks.levels([4, 6, 8], 0.05)[4])
    assert looks.remark(declared) == "Looks declared after 4, 6, 8 seeds: intervals have 99.69% here, not 95 %."
