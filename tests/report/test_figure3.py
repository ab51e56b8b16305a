from pathlib import Path

import pytest
from report.explored import LABELS

from coevolve.config.loading import load_suite
from coevolve.dag.plan import Plan
from coevolve.report.figure3 import Curves, curves, draw
from coevolve.run.run_stage import job_of
from coevolve.stages import figure3 as stage
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


def test_points_are_in_order_with_intervals_and_sources(measured, labels, report):
    figure = curves(measured, labels, report)
    seen = [(p.method, p.iteration) for p in figure.points if p.split == "seen"]
    assert seen == [("sft", 0), ("eto", 1), ("coevolve", 1), ("coevolve", 2)]
    first = figure.points[0]
    assert first.estimate.mean == pytest.approx((0.15 + 0.2 + 0.1) / 3)
    assert first.estimate.low < first.estimate.mean < first.estimate.high
    assert first.sources == measured[0].sources
    assert list(figure.labels) == ["sft", "eto", "coevolve"]
    assert "iteration 0 is SFT" in figure.caption and "protocol fixed" in figure.caption


def test_every_curve_starts_at_sft(measured, labels, report):
    for axes in draw(curves(measured, labels, report), LABELS).axes:
        heights = means(axes)
        assert {label: len(ys) for label, ys in heights.items()} == {"SFT": 1, "ETO": 2, "Co-evolving": 3}
        assert [ys[0] for ys in heights.values()] == pytest.approx([15.0, 15.0, 15.0])
        assert heights["Co-evolving"] == sorted(heights["Co-evolving"])


def test_the_legend_names_each_method_once_and_covers_no_panel(measured, labels, report):
    figure = draw(curves(measured, labels, report), LABELS)
    figure.draw_without_rendering()
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


def test_a_method_that_starts_untrained_begins_with_its_own_evaluation(root, tmp_path, measure):
    overrides = ["methods=[untrained, agent_data]", "iterations={bfcl: 1}", "seeds=[0]", "envs.bfcl.splits=[test]"]
    plan = Plan(load_suite(root / "configs/suites/agent_data.yaml", overrides), root=tmp_path.as_posix())
    for path in {*plan.records(plan.suite.methods).values()}:
        reward = 0.5 if "iter1" in path else 0.25
        jsonl.write(Path(path), measure("it", "bfcl", "test", {"a": [reward]}).records)
    job = job_of(plan, "figure3", {}, plan.inputs("figure3", {}), tmp_path / "work", threads=1)
    (tmp_path / "out").mkdir()
    stage.run(job, tmp_path / "out")
    drawn = Curves.from_json((tmp_path / "out/figure3.json").read_bytes())
    points = [(p.method, p.iteration, p.estimate.mean) for p in drawn.points]
    assert points == [("agent_data", 0, 0.25), ("agent_data", 1, 0.5)]
    assert "iteration 0 of" in drawn.caption and "is the model before training" in drawn.caption


def test_the_caption_names_what_the_points_have(measured, labels, report):
    without = [m for m in measured if m.method != "sft"]
    assert "iteration 0, SFT, is not shown" in curves(without, labels, report).caption
    alone = [m for m in measured if m.method == "sft"]
    assert "no method here has iterations" in curves(alone, labels, report).caption
