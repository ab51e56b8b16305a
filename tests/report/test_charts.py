"""Charts of the report page: numbers for people, seeds as thin lines, rewards of online trainings."""

import re
from xml.etree import ElementTree

import pytest

from coevolve.config.loading import load_suite
from coevolve.records.training import TrajectoryLogps
from coevolve.report import claims, figure3, html, page_figures
from coevolve.report.charts import BarRow, Segment, bar_rows
from coevolve.report.html import PageFiles, RunSettings
from coevolve.report.labels import ReportLabels
from coevolve.report.number_text import duration, readable, size
from coevolve.report.page_figures import TrainingCurve
from coevolve.storage import files

LABELS = ReportLabels({"sft": "SFT", "eto": "ETO <1>", "grpo": "GRPO"}, {"webshop": "WebShop"})


def curves(svg):
    """(classes, name, x, y) of every line; the SVG is well-formed."""
    paths = [path.attrib for path in ElementTree.fromstring(svg).iter("path") if "data-y" in path.attrib]
    numbers = [[list(map(float, path[key].split())) for key in ("data-x", "data-y")] for path in paths]
    return [(path["class"].split(), path["data-name"], *xy) for path, xy in zip(paths, numbers, strict=True)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.0833333, "0.0833"), (-0.5, "-0.5"), (1.0, "1"), (12.345, "12.3"), (24380, "24,380"),
        (1e6, "1,000,000"), (99.96, "100"), (0.1 + 0.2, "0.3"), (3e-9, "3.00e-09"), (-62.0, "-62"),
    ],
)  # fmt: skip
def test_numbers_are_for_people(value, text):
    assert readable(value) == text


@pytest.mark.parametrize(
    ("hours", "text"), [(0, "0 s"), (12 / 3600, "12 s"), (0.05, "3 min"), (1.5, "1.5 h"), (1234, "1,234 h")]
)
def test_durations_have_the_unit_that_fits(hours, text):
    assert duration(hours) == text


def test_seeds_are_thin_lines_and_their_mean_is_thick(measure, report, tmp_path):
    measured = [
        measure("sft", "webshop", "test", {"a": [0.2, 0.4]}),
        measure("eto", "webshop", "test", {"a": [0.6, 1.0]}, iteration=1),
    ]
    data = figure3.curves(measured, {"sft": "SFT", "eto": "ETO <1>"}, report)
    files.write_json(tmp_path / "figure3.json", data.model_dump(mode="json"))
    figure = page_figures.learning_curves(tmp_path / "figure3.json", LABELS)
    assert figure.data[0] == "figure3.json"
    (_, chart) = figure.charts
    drawn = {name: (classes, xs, ys) for classes, name, xs, ys in curves(chart.content)}
    assert drawn["ETO <1>"] == (["c1", "mean"], [0, 1], [30, 80])
    assert drawn["ETO <1>, seed 0"] == (["c1", "seed"], [0, 1], [20, 60])
    assert drawn["ETO <1>, seed 1"] == (["c1", "seed"], [0, 1], [40, 100])
    assert "GRPO" not in drawn and len(drawn) == 6


def test_an_online_training_has_its_reward_by_step_and_iterations_follow_one_another():
    histories = {
        (seed, iteration): [{"loss": 1.0, "reward": seed + iteration + step / 10} for step in range(1, 3)]
        for seed in (0, 1)
        for iteration in (1, 2)
    }
    trained = [
        TrainingCurve("tiny", "webshop", "grpo", seed, iteration, "target", f"r{seed}{iteration}", history)
        for (seed, iteration), history in histories.items()
    ]
    figure = page_figures.training_curves(trained, LABELS)
    charts = {chart.title: chart.content for chart in figure.folded["WebShop"]}
    assert list(charts) == ["GRPO, target agent: loss", "GRPO, target agent: reward"]
    drawn = {name: (xs, ys) for _, name, xs, ys in curves(charts["GRPO, target agent: reward"])}
    assert drawn["GRPO, target agent, reward"] == ([1, 2, 3, 4], [1.6, 1.7, 2.6, 2.7])
    assert drawn["GRPO, target agent, reward, seed 1"] == ([1, 2, 3, 4], [2.1, 2.2, 3.1, 3.2])
    assert len(re.findall('class="break"', charts["GRPO, target agent: loss"])) == 1
    assert figure.data[0] == "r01"


def test_the_mean_of_gold_log_probs_is_over_trainings_of_different_lengths():
    trained = [
        TrainingCurve(
            "tiny", "webshop", "eto", seed, 1, "target", f"r{seed}", [{"loss": 1.0}] * steps,
            TrajectoryLogps(trajectories=1, action_tokens=1, before=-10.0, after=after),
        )
        for seed, steps, after in ((0, 4, -8.0), (1, 6, -2.0))
    ]  # fmt: skip
    *_, chart = page_figures.training_curves(trained, LABELS).folded["WebShop"]
    drawn = {name: (xs, ys) for _, name, xs, ys in curves(chart.content)}
    name = "ETO <1>, target agent, gold log-prob, iteration 1"
    assert drawn[name] == ([0, 6], [-10, -5])
    assert drawn[f"{name}, seed 0"] == ([0, 6], [-10, -8])


def test_values_of_pairs_are_means_over_all_pairs_of_a_step():
    step = {
        "expert_target/pairs": 3.0, "expert_target/rewards/margins": 1.0,
        "failure_failure/pairs": 1.0, "failure_failure/rewards/margins": 5.0,
    }  # fmt: skip
    assert page_figures.step_metric(step, "rewards/margins") == 2.0
    assert page_figures.step_metric({"loss": 1.0}, "rewards/margins") is None


def test_a_long_training_is_drawn_as_means():
    points = page_figures.thinned([(float(x), float(x % 2)) for x in range(1, 1001)])
    assert len(points) <= page_figures.POINTS and points[0] == (5.0, pytest.approx(5 / 9))


@pytest.mark.parametrize(
    ("gigabytes", "text"), [(0, "0 kB"), (9.47e-5, "94.7 kB"), (0.0036, "3.6 MB"), (1.5, "1.5 GB"), (1234, "1,234 GB")]
)
def test_sizes_have_the_unit_that_fits(gigabytes, text):
    assert size(gigabytes) == text


@pytest.mark.parametrize(("values", "widths"), [((-50.0, -35.0), (0.0, 0.0)), ((-50.0, 25.0), (0.0, 100.0))])
def test_a_negative_value_has_no_bar(values, widths):
    """The mean reward of failures can be negative: of InterCodeSQL under protocol `paper`."""
    drawn = bar_rows([BarRow("failures", [[Segment("ETO", 0, value)]], f"{value}") for value in values])
    assert tuple(map(float, re.findall(r'width="([-\d.]+)"', drawn))) == widths


def test_a_section_without_a_chart_is_left_out(root, tmp_path):
    files.write_json(tmp_path / "pairs.json", [])
    files.write_json(tmp_path / "costs.json", {})
    suite, paper = load_suite(root / "configs/suites/smoke.yaml"), claims.load(root / "configs/claims.yaml")
    text = html.report(PageFiles(list(tmp_path.iterdir())), RunSettings.of(suite), paper, {}, [])
    assert re.findall("<h2[^>]*>([^<]*)<", text) == ["Costs"], "its legend alone"
    assert "<dd>ScienceWorld, InterCodeSQL, WebShop</dd>" in text and "<dt>Iterations</dt><dd>2</dd>" in text
