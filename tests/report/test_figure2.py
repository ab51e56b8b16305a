import re

import pytest
from report.explored import LABELS, explored

from coevolve.errors import UserError
from coevolve.report import drawing
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


def test_failures_by_hand():
    """Of the instructions that the SFT policy never solves."""
    several = [explored("eto", {"a": [0.0, 1.0], "b": [0.0, 0.5]})]
    assert failed_by_sft(several, "eto", "sciworld") == {("b", 0)}
    found = explorations()
    numbers = [
        sum(values(found, "number", method, "sciworld", "eto", *agent).values())
        for method, *agent in (("eto",), ("coevolve",), ("coevolve", "failure"))
    ]
    assert numbers == [3 + 2, 3 + 2, 2]
    shared = {method: values(found, "shared_reward", method, "sciworld", "eto") for method in ("eto", "coevolve")}
    assert shared == {
        "eto": pytest.approx({("a", 0): 0.25, ("b", 0): 0.4, ("c", 0): 0.05}),
        "coevolve": pytest.approx({("a", 0): 0.5, ("b", 0): 0.4, ("c", 0): 0.0}),
    }


def test_panels_hold_bars_differences_and_what_is_to_be_said(labels, report):
    """Failures of a seed, and 100 x the mean reward on `a`, `b` and `c`; the failure agent alone fails `a` and `b`."""
    found = explorations((0, 1)) + explorations((0, 1), env="webshop") + [explored("eto", ETO, env="alone")]
    figure = data(found, labels, "An invented shop.", report)
    assert [(panel.env, panel.instructions) for panel in figure.panels] == [("sciworld", 3), ("webshop", 3)]
    panel, means = figure.panels[0], {"number": (5, 5, 2), "shared_reward": (70 / 3, 90 / 3, 60)}
    assert [(b.quantity, b.method, b.agent, b.estimate.mean) for b in panel.bars] == [
        (quantity, method, agent, pytest.approx(mean))
        for quantity in means
        for (method, agent), mean in zip(
            (("eto", None), ("coevolve", None), ("coevolve", "failure")), means[quantity], strict=True
        )
    ]
    failures = panel.bars[0].estimate
    assert failures.low < 5 < failures.high and failures.n_seeds == 2
    differences = {name: (d.mean, d.n, d.n_tasks, d.n_seeds) for name, d in panel.differences.items()}
    assert differences == {"number": (0, 8, 4, 2), "shared_reward": (pytest.approx(20 / 3), 6, 3, 2)}
    assert "text prints no values" in figure.caption and figure.caption.endswith("An invented shop.")
    assert "eto/0/2/target" in figure.sources
    drawn = draw(figure, LABELS).axes
    assert drawn[0].get_title().startswith("ScienceWorld: "), "the label, not the key"
    heights = [bar.get_height() for axes in drawn for bar in axes.patches]
    assert sorted(heights) == pytest.approx(sorted(b.estimate.mean for each in figure.panels for b in each.bars))


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
    assert re.findall(rb"(?:fill|stroke): (?:#000000|black)", svg(figure)) == []
    other = [*explorations()[:3], explored("coevolve", ETO, agent="failure")]
    assert svg(data(other, labels, "", report)) != svg(figure)


def test_nothing_shared_has_bars_of_numbers_only(labels, report):
    found = [
        explored("eto", {"a": 0.0}),
        explored("coevolve", {"a": 1.0}),
        explored("coevolve", {"a": 1.0}, agent="failure"),
    ]
    panel = data(found, labels, "", report).panels[0]
    assert {bar.quantity for bar in panel.bars} == {"number"} and panel.differences.keys() == {"number"}
    with pytest.raises(UserError, match="share no failure"):
        difference(found, "shared_reward", "sciworld", "coevolve", "eto", 0.95)


def test_nothing_to_compare_is_said(labels, report):
    figure = data([explored("eto", ETO)], labels, "Suite micro.", report)
    assert (
        figure.panels == ()
        and figure.caption == "Not run: no environment was explored by both eto and coevolve. Suite micro."
    )
    assert b"<svg" in svg(figure)
