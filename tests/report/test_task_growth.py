"""The growth of a pool: rewards by step, new tasks by signal, tasks that are solved later."""

import re

import builders
import pytest

from coevolve.agent_data.records import PoolTask
from coevolve.config.loading import load_suite
from coevolve.pipeline.plan import Plan
from coevolve.records.episodes import StopReason
from coevolve.report import claims, drawing, html, second_paper, task_growth
from coevolve.report.html import PageFiles, RunSettings
from coevolve.report.labels import ReportLabels
from coevolve.storage import files

LABELS = ReportLabels({"m": "A method"}, {"world": "World"})


def episode(name, step, reward):
    return builders.episode(name, reward, (), env="world", seed=step)


def grown(rounds=None, seed=0):
    """The growth of `POOL` in these rounds, or in `ROUNDS`."""
    return task_growth.growth("m", "world", seed, ROUNDS if rounds is None else rounds, POOL, 0.5)


def last_row(rounds):
    """The cells of the last row of the table."""
    line = task_growth.markdown(rounds, LABELS, 0.95).splitlines()[-1]
    return [cell.strip() for cell in line.strip("|").split("|")]


def entry(name, number, signal=None):
    return PoolTask(
        task=builders.task(name, env="world"), instruction=name, solution=("a",), round=number, fragment=name,
        signal=signal, explorer="e", written_by="rules",
    )  # fmt: skip


ROUNDS = [
    [episode("a", 0, 0.0), episode("a", 0, 1.0), episode("b", 1, 0.0), episode("b", 1, 0.0)],
    [episode("b", 0, 1.0), episode("c", 0, 0.0), episode("c", 1, 0.0), episode("d", 1, 1.0)],
    [episode("c", 0, 1.0), episode("d", 0, 1.0)],
]
POOL = [entry("a", 1), entry("b", 1), entry("c", 2, "boundary"), entry("d", 2, "rare"), entry("e", 2, "rare")]


def test_growth_by_hand():
    """`b` is solved in the second round and `c` in the third; `e` is never visited."""
    expected = (
        {"rewards": (0.5, 0.0), "pool": 2, "new": {"unguided": 2}, "visited": 2, "solved": 2, "gains": ()},
        # Gains: `b` after 0; `c` first 0, then 0.
        {"rewards": (0.5, 0.5), "pool": 5, "new": {"boundary": 1, "rare": 2}, "visited": 2, "solved": 2,
         "gains": (1.0, 0.0)},
        {"rewards": (1.0,), "pool": 5, "new": {}, "visited": 0, "solved": 0, "gains": (1.0, 0.0)},  # after 0 and 1
    )  # fmt: skip
    assert grown() == [
        task_growth.RoundGrowth(method="m", env="world", seed=0, round=number, **values)
        for number, values in enumerate(expected, start=1)
    ]


def test_the_table_has_means_over_seeds_and_the_gain_an_interval():
    """Student's: the mean gains of three seeds are 0.5, 0.5 and 0.8. Where every environment failed, none is known."""
    rounds = [*grown(ROUNDS[:1]), *grown([[episode("a", 0, 1.0), episode("a", 1, 1.0)]], seed=1)]
    assert last_row(rounds) == ["A method", "World", "1", "0.625", "+0.000", "2", "unguided 2.0", "2 of 3 visited"]
    rounds = [each for seed in range(3) for each in grown(seed=seed)]
    rounds[-1] = rounds[-1].model_copy(update={"gains": (0.8,)})
    mean, low, high = map(float, re.findall(r"[+-][\d.]+", last_row(rounds)[4]))
    assert (mean, high - mean) == pytest.approx((0.6, 4.303 * 0.1732 / 3**0.5), rel=0.01)
    assert mean - low == pytest.approx(high - mean, abs=0.002)
    failed = [each.model_copy(update={"stop": StopReason.ENV_ERROR, "reward": 0.0}) for each in ROUNDS[0]]
    rounds = grown([failed])
    assert last_row(rounds) == ["A method", "World", "1", "-", "-", "2", "unguided 2.0", "0 of 0 visited"]
    assert not task_growth.draw(rounds, LABELS).axes


def test_curves_are_means_over_seeds_by_step_and_by_round():
    rounds = grown()
    across = [0.5, 1.0, 1.5, 2.0, 3.0]  # the steps of a round divide it; the third has one
    assert task_growth.reward_curve(rounds[::-1]) == list(zip(across, [0.5, 0.0, 0.5, 0.5, 1.0], strict=True))
    other = [each.model_copy(update={"seed": 1, "rewards": (1.0,) * len(each.rewards)}) for each in rounds]
    means = [0.75, 0.5, 0.75, 0.75, 1.0]
    assert task_growth.reward_curve([*rounds, *other]) == list(zip(across, means, strict=True))
    axes, _ = task_growth.draw([*rounds, *other], LABELS).axes
    (mean,) = (line for line in axes.lines if line.get_label() == "A method")
    assert (list(mean.get_xdata()), list(mean.get_ydata())) == (across, means)
    more = [rounds[1].model_copy(update={"seed": 1, "gains": (0.9,)})]
    assert task_growth.gain_curve([*rounds, *more]) == [(2.0, pytest.approx(0.7)), (3.0, 0.5)]
    once = grown(ROUNDS[:1], seed=1)  # comes back to no task
    assert [len(axes.lines) for axes in task_growth.draw([*rounds, *once], LABELS).axes] == [3, 2]
    assert [axes.get_title() for axes in task_growth.draw(once, LABELS).axes] == ["World: training reward"]


def test_the_pages_section_about_pools(root, tmp_path):
    """Of two seeds of a method with a hostile label: rewards, signals, solved tasks, and the second paper's numbers."""
    rounds = task_growth.growth("agent_data", "bfcl", 0, ROUNDS, POOL, 0.5)
    rounds += [each.model_copy(update={"seed": 1}) for each in rounds]
    suite = load_suite(root / "configs/suites/smoke_agent_data.yaml", ['recipes.agent_data.label="<b>Ours</b>"'])
    paper, labels = claims.load(root / "configs/claims.yaml"), ReportLabels.of(suite)
    (table,) = paper.success_tables.values()
    folder = tmp_path / "task_growth"
    folder.mkdir()
    files.write_json(folder / "growth.json", [each.model_dump(mode="json") for each in rounds])
    drawing.write(folder / "growth.svg", lambda: task_growth.draw(rounds, labels))
    drawing.write(folder / "new_tasks.svg", lambda: task_growth.draw_new_tasks(rounds, labels))
    (folder / "growth.md").write_text(task_growth.markdown(rounds, labels, 0.95))
    (folder / "comparison.md").write_text(second_paper.markdown(table, [], suite.report))
    page = html.report(PageFiles(sorted(folder.iterdir())), RunSettings.of(suite), paper, {})
    section = re.search(r"<section aria-labelledby=\"the-second-paper.*?</section>", page, re.DOTALL)[0]
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", section)
    assert {"unguided 4", "boundary 2, rare 4", "4 of 4 visited", "BFCL: training reward"} <= set(texts)
    tips = re.findall(r"<title>([^<]*)</title>", section)
    # Rewards and gains: the mean, with its name alone, and two seeds.
    assert [tips.count(f"&lt;b&gt;Ours&lt;/b&gt;{seed}") for seed in ("", ", seed 0", ", seed 1")] == [2, 2, 2]
    assert {"unguided: 4", "boundary: 2", "rare: 4", "solved later: 1"} <= set(tips)
    assert "<b>" not in section
    assert second_paper.sentence(table) in section
    assert "Qwen3-4B full" in section and re.search(r"p 0\.\d", section)
    links = re.findall('href="([^"]*)"', section)
    assert "../../task_growth/growth.json" in links and "../../task_growth/comparison.md" in links


def test_a_share_is_drawn_in_the_scale_of_1():
    _, shares = task_growth.draw_new_tasks(grown(ROUNDS[:1]), LABELS).axes  # one of two tasks is solved
    assert [bar.get_width() for bar in shares.patches] == [0.5] and shares.get_xlim() == (0, 1)
    assert "1 of 2 visited" in [text.get_text() for text in shares.texts]


def test_the_page_and_an_export_have_the_pools_of_a_suite_that_has_pools(root):
    for name, has_pools in {"smoke_agent_data": True, "smoke": False}.items():
        plan = Plan(load_suite(name))
        grown = f"results/{name}/task_growth/growth.json"
        assert (grown in plan.products["page"].inputs["products"]) == has_pools
        assert ("task_growth" in {job.stage.name for job in plan.jobs()}) == has_pools
        assert ("task_growth" in plan.products) == has_pools
