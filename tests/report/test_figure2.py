import re

import numpy as np
import pytest
from report.explored import LABELS, explored

from coevolve.errors import UserError
from coevolve.report import drawing, figure2
from coevolve.report.figure2 import FailureFigure, data, difference, draw, failed_by_sft, values

#: SFT solves `d`; the failure agent, alone, makes a better failure of `a` and solves `c`.
ETO = {"a": 0.2, "b": 0.4, "c": 0.0, "d": 1.0}
LATER = {"a": 0.3, "b": 1.0, "c": 0.1, "d": 0.0}
OURS = {"a": 0.8, "b": 0.4, "c": 1.0, "d": 0.5}


def svg(figure):
    return drawing.svg(drawing.drawn(lambda: draw(figure, LABELS)))


def explorations(seeds=(0,), env="sciworld"):
    return [
        one
        for seed in seeds
        for one in (
            explored("eto", ETO, seed=seed, env=env),
            explored("eto", LATER, seed=seed, iteration=2, env=env),
            explored("coevolve", ETO, seed=seed, env=env),
            explored("coevolve", OURS, seed=seed, agent="failure", env=env),
        )
    ]


def test_only_instructions_that_the_sft_policy_never_solves_count():
    assert failed_by_sft(explorations(), "eto", "sciworld") == {("a", 0), ("b", 0), ("c", 0)}
    several = [explored("eto", {"a": [0.0, 1.0], "b": [0.0, 0.5]})]
    assert failed_by_sft(several, "eto", "sciworld") == {("b", 0)}


def test_failures_by_hand():
    found = explorations()
    assert sum(values(found, "number", "eto", "sciworld", "eto").values()) == 3 + 2
    assert sum(values(found, "number", "coevolve", "sciworld", "eto").values()) == 3 + 2
    assert sum(values(found, "number", "coevolve", "sciworld", "eto", "failure").values()) == 2
    assert values(found, "shared_reward", "eto", "sciworld", "eto") == pytest.approx(
        {("a", 0): 0.25, ("b", 0): 0.4, ("c", 0): 0.05}
    )
    assert values(found, "shared_reward", "coevolve", "sciworld", "eto")["a", 0] == pytest.approx(0.5)


def test_differences_are_of_a_seeds_failures_and_of_shared_instructions():
    for seeds in ((0,), (0, 1)):
        options = {"resamples": 200, "rng": np.random.default_rng(0)}
        found = explorations(seeds)
        assert difference(found, "number", "sciworld", "coevolve", "eto", **options).mean == pytest.approx(0.0)
        shared = difference(found, "shared_reward", "sciworld", "coevolve", "eto", **options)
        assert shared.mean == pytest.approx(100 * ((0.5 - 0.25) + 0.0 + (0.0 - 0.05)) / 3)
        assert (shared.n_tasks, shared.n_seeds) == (3, len(seeds))


def test_panels_hold_bars_differences_and_what_is_to_be_said(labels, report):
    found = explorations((0, 1)) + explorations((0, 1), env="webshop") + [explored("eto", ETO, env="alone")]
    figure = data(found, labels, "An invented shop.", report)
    assert [panel.env for panel in figure.panels] == ["sciworld", "webshop"]
    panel = figure.panels[0]
    assert panel.instructions == 3
    assert [(b.quantity, b.method, b.agent) for b in panel.bars] == [
        (quantity, method, agent)
        for quantity in ("number", "shared_reward")
        for method, agent in (("eto", None), ("coevolve", None), ("coevolve", "failure"))
    ]
    failures = panel.bars[0].estimate
    assert failures.mean == 5 and failures.low < 5 < failures.high and failures.n_seeds == 2
    assert panel.differences["shared_reward"].mean == pytest.approx(20 / 3)
    assert {name: each.n for name, each in panel.differences.items()} == {"number": 8, "shared_reward": 6}
    assert "text prints no values" in figure.caption and figure.caption.endswith("An invented shop.")
    assert "eto/0/2/target" in figure.sources


def test_another_methods_tasks_count_nothing(labels, report):
    """A pool of tasks that grows is explored by its own method only."""
    other = explored("agent_data", dict.fromkeys("uvwxyz", 0.0))
    panels = [data(found, labels, "", report).panels for found in (explorations(), [*explorations(), other])]
    assert panels[0] == panels[1]


def test_data_come_back_from_json_unchanged_and_give_equal_images(labels, report):
    figure = data(explorations(), labels, "", report)
    again = FailureFigure.from_json(figure.to_json())
    assert again == figure and svg(again) == svg(figure)
    assert b"<dc:date>" not in svg(figure) and svg(figure).count(b"<svg") == 1
    assert b"currentColor" in svg(figure) and b"prefers-color-scheme: dark" in svg(figure)
    assert re.findall(rb"(?:fill|stroke): (?:#000000|#ffffff|black|white)", svg(figure)) == []
    other = [*explorations()[:3], explored("coevolve", ETO, agent="failure")]
    assert svg(data(other, labels, "", report)) != svg(figure)


def test_bars_are_as_high_as_the_data(labels, report):
    figure = data(explorations(), labels, "", report)
    above, below = figure2.draw(figure, LABELS).axes
    assert above.get_title().startswith("ScienceWorld: "), "the label, not the key"
    assert [bar.get_height() for bar in above.patches] == [5.0, 5.0, 2.0]
    assert below.patches[0].get_height() == pytest.approx(100 * (0.25 + 0.4 + 0.05) / 3)


def test_nothing_shared_has_bars_of_numbers_only(labels, report):
    found = [
        explored("eto", {"a": 0.0}),
        explored("coevolve", {"a": 1.0}),
        explored("coevolve", {"a": 1.0}, agent="failure"),
    ]
    panel = data(found, labels, "", report).panels[0]
    assert {bar.quantity for bar in panel.bars} == {"number"} and panel.differences.keys() == {"number"}
    with pytest.raises(UserError, match="share no failure"):
        difference(found, "shared_reward", "sciworld", "coevolve", "eto", resamples=9, rng=np.random.default_rng(0))


def test_nothing_to_compare_is_said(labels, report):
    figure = data([explored("eto", ETO)], labels, "Suite micro.", report)
    assert (
        figure.panels == ()
        and figure.caption == "Not run: no environment was explored by both eto and coevolve. Suite micro."
    )
    assert b"<svg" in svg(figure)
