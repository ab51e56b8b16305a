"""What a decision rests on, on the committed differences and on constructed ones."""

from statistics import fmean

import numpy as np
import pytest
from report.explored import LABELS

from coevolve.records.tables import Estimate
from coevolve.report import estimation, robustness
from coevolve.report.differences import Difference, markdown
from coevolve.report.figure3 import Curves, Point
from coevolve.report.robustness import Collapses
from coevolve.storage import product_file


def committed(root, folder):
    home = root / "results/reference" / folder
    found = product_file.read(home / "differences.json", list[Difference])
    return {(d.better, d.than): d.estimate for d in found}, product_file.read(home / "figure3.json", Curves).points


def test_which_committed_differences_are_decided(root):
    science, _ = committed(root, "science")
    for pair in (("coevolve", "eto"), ("second_target", "eto_eq9")):
        assert estimation.decided(science[pair], 0.95) == 1
        assert robustness.sign_flip_p([*science[pair].seed_means.values()]) == 6 / 2**8
    why, _ = committed(root, "science_why")
    for estimate in (science["coevolve", "sft"], why["coevolve", "eto_matched"]):
        assert estimation.mark(estimate, 0.95) == " (undecided)"
    assert robustness.sign_flip_p([*why["coevolve", "eto_matched"].seed_means.values()]) is None, "too few seeds"
    assert estimation.decided(science["coevolve", "eto_eq9"], 0.95) == 0


def test_which_committed_trainings_collapsed(root):
    _, points = committed(root, "science")
    found = {(each.method, each.iteration): each for each in robustness.collapses(points, 0.2)}
    assert {key: each.collapsed for key, each in found.items() if each.collapsed} == {
        ("eto", 1): (2, 4), ("eto_again", 1): (7,),
    }  # fmt: skip
    assert len(found["coevolve", 3].seeds) == 8
    assert robustness.collapsed_seeds([*found.values()])["sciworld", "eto"] == {2, 4}


def test_a_collapse_is_a_loss_against_the_trainings_own_start_over_all_splits():
    def point(iteration, split, tasks, *means):
        estimate = Estimate(
            mean=fmean(means), low=0, high=1, n=2, n_tasks=tasks, n_seeds=2, seed_means=dict(enumerate(means))
        )
        return Point(method="eto", env="shop", split=split, iteration=iteration, estimate=estimate, sources=())

    rewards = {0: (0.8, 0.8), 1: (0.5, 0.65), 2: (0.5, 0.4)}
    points = [point(i, split, tasks, *of) for i, of in rewards.items() for split, tasks in (("a", 10), ("b", 30))]
    points[3] = point(1, "b", 30, 0.5, 0.5)  # seed 1: (10 * 0.65 + 30 * 0.5) / 40 = 0.5375, a loss of 0.2625
    assert robustness.collapses(points, 0.25) == [
        Collapses("shop", "eto", 1, (0, 1), (0, 1)), Collapses("shop", "eto", 2, (0, 1), ()),
    ]  # fmt: skip


@pytest.mark.parametrize(("collapsed", "trainings", "low", "high"), [(0, 8, 0.0, 0.3694), (3, 16, 0.0405, 0.4565)])
def test_the_share_of_collapses_has_clopper_and_pearsons_interval(collapsed, trainings, low, high):
    found = Collapses("shop", "eto", 1, tuple(range(trainings)), tuple(range(collapsed)))
    assert found.interval() == pytest.approx((low, high), abs=5e-5)


def test_the_page_shows_what_a_difference_is_without_collapsed_trainings(root, report):
    estimates, points = committed(root, "science")
    shown = Difference(env="sciworld", better="coevolve", than="eto", estimate=estimates["coevolve", "eto"])
    text = " ".join(markdown([shown], points, LABELS, report).split())
    assert "| ScienceWorld | Co-evolving - ETO | 4.1 [1.1, 7.2] | 210 | 8 | decided | 0.023 | 3.1 [" in text
    assert "| ScienceWorld | ETO, 1 | 2 | 8 | 3% to 65% | 2, 4 |" in text
    rest = robustness.conditional(shown.estimate, {2, 4}, 0.95)
    kept = [mean for seed, mean in shown.estimate.seed_means.items() if seed not in (2, 4)]
    assert rest[0] == np.mean(kept) and rest[1] < 0 < rest[0]
    assert robustness.conditional(shown.estimate, {9}, 0.95) is None
