from pathlib import Path

import pytest
from report.explored import LABELS, run

from coevolve.config.loading import load_suite
from coevolve.pipeline.plan import Plan
from coevolve.report.figure3 import Curves, curves, draw
from coevolve.storage import jsonl


def means(axes):
    """The heights of the lines that the legend names; those of seeds have no label."""
    return {line.get_label(): list(line.get_ydata()) for line in axes.lines if not line.get_label().startswith("_")}


@pytest.fixture
def measured(measure):
    runs = [("sft", 0, 0.2), ("coevolve", 2, 0.8), ("coevolve", 1, 0.6), ("eto", 1, 0.4)]
    return [
        measure(method, "sciworld", split, {"a": [value, value / 2], "b": [value], "c": [0.1]}, iteration=iteration)
        for split in ("seen", "unseen")
        for method, iteration, value in runs
    ]


def test_points_are_in_order_and_every_curve_starts_at_sft(measured, labels, report):
    """Task `a` has two seeds, of `v` and `v / 2`: a point is at (0.75 v + v + 0.1) / 3."""
    data = curves(measured, labels, report)
    assert [(p.split, p.method, p.iteration, p.estimate.mean) for p in data.points] == [
        (split, method, iteration, pytest.approx(mean))
        for split in ("seen", "unseen")
        for method, iteration, mean in (
            ("sft", 0, 0.45 / 3), ("eto", 1, 0.8 / 3), ("coevolve", 1, 1.15 / 3), ("coevolve", 2, 1.5 / 3),
        )
    ]  # fmt: skip
    assert data.points[0].estimate.low < 0.15 < data.points[0].estimate.high
    assert data.points[0].sources == measured[0].sources
    assert list(data.labels) == ["sft", "eto", "coevolve"]
    assert "iteration 0 is SFT" in data.caption and "protocol fixed" in data.caption
    figure = draw(data, LABELS)
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert means(axes) == {
            "SFT": pytest.approx([15]),
            "ETO": pytest.approx([15, 80 / 3]),
            "Co-evolving": pytest.approx([15, 115 / 3, 50]),
        }
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["SFT", "ETO", "Co-evolving"]
    assert not any(legend.get_window_extent().overlaps(axes.get_tightbbox()) for axes in figure.axes)


def test_a_curve_with_an_iteration_0_of_its_own_does_not_start_at_sft(measured, measure, labels, report):
    own = [
        measure("odd", "sciworld", split, {"a": [value]}, iteration=iteration)
        for split in ("seen", "unseen")
        for iteration, value in enumerate((0.1, 0.3))
    ]
    figure = curves([*measured, *own], labels, report)
    assert "iteration 0 is SFT; iteration 0 of 50 % odd_method & more is the model before training" in figure.caption
    for axes in draw(figure, LABELS).axes:
        heights = means(axes)
        assert heights["50 % odd_method & more"] == pytest.approx([10.0, 30.0])
        assert len(heights["ETO"]) == 2
    without, alone = ([m for m in measured if (m.method == "sft") is of_sft] for of_sft in (False, True))
    assert "iteration 0, SFT, is not shown" in curves(without, labels, report).caption
    assert "no method here has iterations" in curves(alone, labels, report).caption


def test_a_method_that_starts_untrained_begins_with_its_own_evaluation(root, tmp_path, measure):
    overrides = ["methods=[untrained, agent_data]", "iterations={bfcl: 1}", "seeds=[0]", "envs.bfcl.splits=[test]"]
    plan = Plan(load_suite(root / "configs/suites/agent_data.yaml", overrides), root=tmp_path.as_posix())
    for path in {file.path for file in plan.records(plan.suite.methods)}:
        reward = 0.5 if "iter1" in path else 0.25
        jsonl.write(Path(path), measure("it", "bfcl", "test", {"a": [reward]}).records)
    run(plan, plan.products["figure3"], tmp_path / "out", tmp_path / "work")
    drawn = Curves.from_json((tmp_path / "out/figure3.json").read_bytes())
    points = [(p.method, p.iteration, p.estimate.mean) for p in drawn.points]
    assert points == [("agent_data", 0, 0.25), ("agent_data", 1, 0.5)]
    assert "iteration 0 of" in drawn.caption and "is the model before training" in drawn.caption
