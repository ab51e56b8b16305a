"""The rise of a training's reward: at equal tasks, whatever tasks its steps happen to have."""

import numpy as np
import pytest
from report.explored import episode

from coevolve.records.episodes import StopReason
from coevolve.report import estimation, learnability


def training(scores, order, *, group=1, seed=0):
    """Episodes of a training that visits task `order[i]` in step i with the reward `scores[i]`."""
    return [
        episode(f"t{task}", score, sample=sample).model_copy(update={"seed": 1000 * seed + step})
        for step, (task, score) in enumerate(zip(order, scores, strict=True))
        for sample in range(group)
    ]


def rises(trainings, before):
    return learnability.rises([learnability.scores(iter(each)) for each in trainings], before)


def test_easy_tasks_at_the_end_are_no_rise():
    """Two trainings that learn nothing: one meets the easy tasks last, the other first."""
    before = {f"t{task}": task / 10 for task in range(10)}
    up = training([task / 10 for task in range(10)], range(10))
    down = training([task / 10 for task in reversed(range(10))], reversed(range(10)), seed=1)
    assert rises([up, down], [{}, {}]) == pytest.approx([0.9, -0.9])
    assert rises([up, down], [before, before]) == pytest.approx([0.0, 0.0], abs=1e-12)


def test_the_rise_is_from_the_first_to_the_last_step():
    rng = np.random.default_rng(0)
    before = {f"t{task}": float(reward) for task, reward in enumerate(rng.uniform(0.0, 0.6, 21))}
    orders = [rng.permutation(21) for _ in range(2)]
    trainings = [
        training([before[f"t{task}"] + 0.3 * step / 20 for step, task in enumerate(order)], order, group=2, seed=seed)
        for seed, order in enumerate(orders)
    ]
    assert rises(trainings, [before, before]) == pytest.approx([0.3, 0.3])


def test_what_is_not_known_before_changes_nothing_and_one_step_has_no_rise():
    given = training([0.1 * step for step in range(5)], range(5))
    assert rises([given], [{}]) == pytest.approx([0.4])
    failed = episode("t9", 0.0).model_copy(update={"seed": 4, "stop": StopReason.ENV_ERROR})
    assert rises([[*given, failed]], [{"t9": 1.0}]) == pytest.approx([0.4])
    assert rises([training([0.5], [0]), training([0.1, 0.6], [0, 1])], [{}, {}]) == pytest.approx([0.5])
    assert rises([], []) == [] == rises([[]], [{}])


def test_tasks_that_differ_hide_less_of_a_rise_than_without_adjustment():
    """In simulations: how often the interval of eight trainings is above 0, with a rise and without."""

    def share_above_0(rise: float, known: bool) -> float:
        passes = 0
        for trial in range(60):
            rng = np.random.default_rng(trial)
            trainings, before = [], []
            for seed in range(8):
                ease = rng.uniform(0.0, 0.8, 40)
                scores = np.clip(ease + rise * np.arange(40) / 39 + rng.normal(0.0, 0.1, 40), 0.0, 1.0)
                trainings.append(training(scores.tolist(), range(40), seed=seed))
                before.append({f"t{task}": float(reward) for task, reward in enumerate(ease)} if known else {})
            low, _ = estimation.interval(rises(trainings, before), 0.0, 0.95)
            passes += low > 0.0
        return passes / 60

    assert share_above_0(0.0, known=True) <= 0.1
    assert share_above_0(0.1, known=True) >= share_above_0(0.1, known=False) + 0.3
