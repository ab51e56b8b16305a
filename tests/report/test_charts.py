"""Figures of the report page: numbers for people, seeds as thin lines, rewards of online trainings."""

import re
from xml.etree import ElementTree

import pytest

from coevolve.config.loading import load_suite
from coevolve.records.training import TrajectoryLogps
from coevolve.report import claims, drawing, figure3, html, training_figure
from coevolve.report.drawing import BarRow
from coevolve.report.html import PageFiles, RunSettings
from coevolve.report.labels import ReportLabels
from coevolve.report.number_text import duration, readable, size
from coevolve.report.training_figure import TrainingCurve
from coevolve.results import tables
from coevolve.storage import files

LABELS = ReportLabels({"sft": "SFT", "eto": "ETO <1>", "grpo": "GRPO"}, {"webshop": "WebShop"})


def points(figure):
    """(x, y) of every labelled or named line, by the text that is shown when it is pointed at."""
    tips = {line: (line.get_gid() or "").removeprefix("tip:") for axes in figure.axes for line in axes.lines}
    return {tip: [list(map(float, line.get_xdata())), list(map(float, line.get_ydata()))] for line, tip in tips.items()}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.0833333, "0.0833"), (-0.5, "-0.5"), (1.0, "1"), (12.345, "12.3"), (24380, "24,380"),
        (1e6, "1,000,000"), (99.96, "100"), (0.1 + 0.2, "0.3"), (3e-9, "3.00e-09"), (-62.0, "-62"),
    ],
)  # fmt: skip
def test_numbers_are_for_people(value, text):
    assert readable(value) == text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e308, -1e308])
def test_a_value_that_cannot_be_placed_is_left_out(tmp_path, value):
    def curve():
        figure, (axes,) = drawing.panels("Losses", 1)
        drawing.curves(axes, "SFT", 0, [(0, 1.0), (1, value), (2, 1.5)], {0: [(1, value)], 1: [(0, 2.0)]}, "o-")
        drawing.write(tmp_path / "curve.svg", lambda: figure)
        return figure

    assert [line.get_xydata().tolist() for line in curve().axes[0].lines] == [[[0, 2.0]], [[0, 1.0], [2, 1.5]]]
    rows = [BarRow("SFT", [[("hours", 0, value), ("more", 1, 2.0)]], "text")]
    figure = drawing.bars("Costs", {"hours": rows})
    drawing.write(tmp_path / "bars.svg", lambda: figure)
    assert [patch.get_width() for patch in figure.axes[0].patches] == [0.0, 2.0]


def test_durations_and_sizes_have_the_unit_that_fits():
    hours = {0: "0 s", 12 / 3600: "12 s", 0.05: "3 min", 1.5: "1.5 h", 1234: "1,234 h"}
    gigabytes = {0: "0 kB", 9.47e-5: "94.7 kB", 0.0036: "3.6 MB", 1.5: "1.5 GB", 1234: "1,234 GB"}
    assert {value: duration(value) for value in hours} == hours
    assert {value: size(value) for value in gigabytes} == gigabytes


def test_seeds_are_thin_lines_and_their_mean_is_thick(measure, report):
    measured = [
        measure("sft", "webshop", "test", {"a": [0.2, 0.4]}),
        measure("eto", "webshop", "test", {"a": [0.6, 1.0]}, iteration=1),
    ]
    figure = figure3.draw(figure3.curves(measured, {"sft": "SFT", "eto": "ETO <1>"}, report), LABELS)
    (axes,) = figure.axes
    drawn = {line.get_gid(): (line.get_linewidth(), pytest.approx(line.get_ydata())) for line in axes.lines}
    assert drawn["tip:ETO <1>, seed 0"] == (0.8, [20, 60]) and drawn["tip:ETO <1>, seed 1"] == (0.8, [40, 100])
    (mean,) = (name for name in drawn if name.startswith("tip:ETO <1>: 0: 30 ["))
    assert drawn[mean] == (1.5, [30, 80]) and "; 1: 80 [" in mean
    assert {line.get_color() for line in axes.lines} == {drawing.series_colour(number) for number in (0, 1)}
    assert len(drawn) == 6


def test_an_online_training_has_its_reward_by_step_and_iterations_follow_one_another():
    histories = {
        (seed, iteration): [{"loss": 1.0, "reward": seed + iteration + step / 10} for step in range(1, 3)]
        for seed in (0, 1)
        for iteration in (1, 2)
    }
    trained = [
        TrainingCurve("tiny", "webshop", "grpo", seed, iteration, "target", history)
        for (seed, iteration), history in histories.items()
    ]
    figure = training_figure.draw(trained, LABELS)
    titles = [axes.get_title().replace("\n", " ") for axes in figure.axes]
    assert titles == ["WebShop: GRPO, target agent: loss", "WebShop: GRPO, target agent: reward"]
    drawn = points(figure)
    expected = {"": [1.6, 1.7, 2.6, 2.7], ", seed 1": [2.1, 2.2, 3.1, 3.2]}
    for seed, values in expected.items():
        steps, rewards = drawn[f"GRPO, target agent, reward{seed}"]
        assert (steps, rewards) == ([1, 2, 3, 4], pytest.approx(values))
    breaks = [line for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    assert [list(line.get_xdata()) for line in breaks] == [[2, 2]]


def test_the_mean_of_gold_log_probs_is_over_trainings_of_different_lengths():
    trained = [
        TrainingCurve(
            "tiny", "webshop", "eto", seed, 1, "target", [{"loss": 1.0}] * steps,
            TrajectoryLogps(trajectories=1, action_tokens=1, before=-10.0, after=after),
        )
        for seed, steps, after in ((0, 4, -8.0), (1, 6, -2.0))
    ]  # fmt: skip
    drawn = points(training_figure.draw(trained, LABELS))
    name = "ETO <1>, target agent, gold log-prob, iteration 1"
    assert drawn[f"{name}: 0: -10; 6: -5"] == [[0, 6], [-10, -5]]
    assert drawn[f"{name}, seed 0"] == [[0, 6], [-10, -8]]


def test_values_of_pairs_are_means_over_all_pairs_of_a_step():
    step = {
        "expert_target/pairs": 3.0, "expert_target/rewards/margins": 1.0,
        "failure_failure/pairs": 1.0, "failure_failure/rewards/margins": 5.0,
    }  # fmt: skip
    assert tables.step_metric(step, "rewards/margins") == 2.0
    assert tables.step_metric({"loss": 1.0}, "rewards/margins") is None


def test_a_long_training_is_drawn_as_means():
    points = training_figure.thinned([(float(x), float(x % 2)) for x in range(1, 1001)])
    assert len(points) <= training_figure.POINTS and points[0] == (5.0, pytest.approx(5 / 9))


@pytest.mark.parametrize(("values", "widths"), [((-50.0, -35.0), (0.0, 0.0)), ((-50.0, 25.0), (0.0, 25.0))])
def test_a_negative_value_has_no_bar(values, widths):
    """The mean reward of failures can be negative: of InterCodeSQL under protocol `paper`."""
    rows = [BarRow("failures", [[("ETO", 0, value)]], f"{value}") for value in values]
    (axes,) = drawing.bars("Bars", {"All": rows}).axes
    assert tuple(bar.get_width() for bar in axes.patches) == widths
    assert axes.get_xlim() == (0, max(widths) or 1)


def test_marks_have_their_numbers_as_text_and_hostile_labels_stay_text():
    rows = [BarRow('<b>"x" & #000000</b>', [[('<i>"a"</i>: black', 0, 0.12345), ("b", 1, 2)]], "1 $of$ 2")]
    image = drawing.svg(drawing.drawn(lambda: drawing.bars("A <title>", {"All": rows}))).decode()
    tree = ElementTree.fromstring(image)
    name = "{http://www.w3.org/2000/svg}"
    assert tree.find(f"{name}title").text == "A <title>"
    tips = [title.text for title in tree.iter(f"{name}title")]
    assert tips[1:] == ['<i>"a"</i>: black: 0.123', "b: 2"]
    texts = [text.text for text in tree.iter(f"{name}text")]
    assert '<b>"x" & #000000</b>' in texts and "1 $of$ 2" in texts and '<i>"a"</i>: black' in texts
    colours = set(re.findall(r"(?:fill|stroke): ([^;\"]*)", image.partition("</style>")[2]))
    assert colours == {"none", "currentColor", "#ffffff", "#0b66c3", "#c4560a"}
    assert set(re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', image)) and "DejaVu" not in image


def test_a_section_without_a_measurement_is_left_out(root, tmp_path):
    files.write_json(tmp_path / "pairs.json", [])
    files.write_json(tmp_path / "costs.json", {"stage": []})
    drawing.write(tmp_path / training_figure.NAME, lambda: training_figure.draw([], LABELS))
    suite, paper = load_suite(root / "configs/suites/smoke.yaml"), claims.load(root / "configs/claims.yaml")
    text = html.report(PageFiles(list(tmp_path.iterdir())), RunSettings.of(suite), paper, {})
    assert re.findall("<h2[^>]*>([^<]*)<", text) == ["Costs", "Provenance"]
    assert "<dd>ScienceWorld, InterCodeSQL, WebShop</dd>" in text and "<dt>Iterations</dt><dd>2</dd>" in text
