import re
from pathlib import Path

import numpy as np
import pytest
from builders import record
from report.explored import claim, episodes, explored

from coevolve.config.loading import load_suite
from coevolve.pipeline.plan import Plan
from coevolve.report import claims as paper
from coevolve.report import estimation, verdicts
from coevolve.report.claim_tests import ClaimTest, Results, prepare
from coevolve.report.claims import Claims
from coevolve.report.labels import ReportLabels
from coevolve.report.table import Footnote, markdown
from coevolve.report.table1 import MeasuredCells
from coevolve.storage import jsonl, product_file
from coevolve.watch import on_disk

COLUMNS = {
    "seen": {"label": "Seen", "env": "sciworld", "split": "seen", "tasks": 3},
    "shop": {"label": "Shop", "env": "webshop", "split": "test"},
    "mean": {"label": "Mean"},
}


def small(**statements):
    return Claims.model_validate(
        {
            "source": "a paper",
            "model": "tiny",
            "protocol": "fixed",
            "explored": {"sciworld": 2},
            "columns": COLUMNS,
            "rows": {
                "sft": {"label": "SFT", "place": "row 1", "rival": "eto", "cells": {"seen": 50.0}},
                "eto": {"label": "ETO", "place": "row 2", "rival": "sft", "cells": {"seen": 60.0}},
            },
            "facts": [],
            "statements": {
                name: {"text": "it says", "place": "section 5"} | given for name, given in statements.items()
            },
        }
    )


def asked(claims, measurements=(), explorations=(), miniature=False):
    results = Results(tuple(measurements), tuple(explorations))
    return {test.name: test for test in prepare(claims, results, 0.95, miniature=miniature)}


def question(*groups, name="it", **about):
    estimates = [estimation.estimate([np.array(values_ts)], 0, 0.95) for values_ts in groups]
    return ClaimTest(name, claim(**about), tuple(estimates))


def judged(*groups, **about):
    return verdicts.judge(question(*groups, **about), 0.95)


def of_means(*means):
    """Values of tasks by four trainings, which differ by little."""
    noise = np.random.default_rng(1).normal(0, 0.1, (200, 4))
    return [mean + noise - noise.mean() for mean in means]


def test_an_order_agrees_differs_or_cannot_be_told():
    above, below, around = of_means(5.0, -5.0, 0.0)
    assert [judged(values).verdict for values in (above, below, around)] == ["agrees", "differs", "cannot tell"]
    assert judged(above[:, :3]).verdict == "cannot tell", "three seeds"
    # A gain is the largest if it is above each of the others.
    assert [judged(above, other).verdict for other in (above, around, below)] == ["agrees", "cannot tell", "differs"]


@pytest.mark.parametrize(
    ("mean", "rival", "expected"), [(62.0, 70.0, "agrees"), (62.0, 64.0, "cannot tell"), (55.0, 70.0, "differs")]
)
def test_a_number_is_that_of_one_run(mean, rival, expected):
    """Trainings differ by 1.29 points: one of our runs lies within 3.18 * 1.29 * sqrt(1.25) = 4.6 of their mean."""
    values_ts = mean + np.array([[-1.5, -0.5, 0.5, 1.5]] * 30)
    told = judged(values_ts, value=60.0, rival=rival)
    assert told.verdict == expected
    run = f"[{mean - 2.054:.1f}, {mean + 2.054:.1f}] points, one run {mean - 4.59:.1f} to {mean + 4.59:.1f} (30 tasks"
    assert told.text.startswith(f"The paper 60.0, not {rival}, here {mean} {run}")


def test_what_cannot_be_told_yet_has_the_seeds_that_would():
    rng = np.random.default_rng(0)
    few = judged(np.array([-0.6, 0.8, 1.4, 0.1]) + rng.normal(0, 1.0, (100, 4)))
    assert 4 < few.seeds_needed < 80 and few.text.endswith(f": cannot tell yet (about {few.seeds_needed} seeds would).")
    one = judged(rng.normal(0.1, 3.0, (50, 1)))
    assert one.seeds_needed is None and "one seed does not show how trainings differ" in one.text
    tasks = rng.normal(0.1, 3.0, (50, 1)) + rng.normal(0, 0.01, (50, 4))
    never = judged(tasks)
    assert never.seeds_needed is None and never.text.endswith(": cannot tell (not even 200 seeds would).")
    number = judged(50.0 + np.array([[-2.0, 0.0, 1.0, 2.0]] * 9), value=50.0, rival=54.0)
    assert number.verdict == "cannot tell" and number.seeds_needed is None


def test_more_claims_change_no_verdict():
    rng = np.random.default_rng(0)
    one = question(np.array([-0.6, 0.8, 1.4, 0.1]) + rng.normal(0, 1.0, (100, 4)))
    assert verdicts.verdict(one, 0.95).seeds_needed == verdicts.judge(one, 0.95).seeds_needed


def of(*outcomes, **fields):
    """Verdicts with these outcomes."""
    (not_run,) = [verdicts.verdict(ClaimTest("it", claim(**fields), missing="not evaluated"), 0.95)]
    assert (not_run.verdict, not_run.text) == ("not run", "not evaluated")
    return [not_run.model_copy(update={"verdict": outcome}) for outcome in outcomes]


def test_exit_status_and_summary():
    assert verdicts.exit_status(of("agrees", "cannot tell", "not run")) == 0
    assert verdicts.exit_status(of("agrees", "differs")) == 1
    assert verdicts.exit_status(of("cannot tell", "not run")) == 3
    assert verdicts.summary(of("agrees", "not run", "not run")) == "1 of 3 claims judged in this suite: 1 agrees."


def test_what_only_a_secondary_source_says_is_counted_apart():
    together = [*of("agrees"), *of("differs", "differs", "cannot tell", unverified=True)]
    assert verdicts.exit_status(together) == 0
    assert verdicts.summary(together) == (
        "1 of 1 claims judged in this suite: 1 agrees. From secondary sources, unverified: "
        "3 of 3 claims judged in this suite: 2 differ, 1 cannot be told yet."
    )
    assert "* `it`, differs (unverified): not evaluated section 5: it says" in verdicts.markdown(together)


def test_cells_of_a_table_get_notes_after_its_own(measure, report):
    sft = measure("sft", "sciworld", "seen", {key: [0.5] for key in "abc"})
    table = MeasuredCells.of([sft], small(), ReportLabels({}, {}), report).reward_table()
    table = table.model_copy(update={"footnotes": (Footnote(mark="a", text="a fact", cells=()),)})
    found = [verdicts.verdict(test, 0.95) for test in asked(small(), [sft]).values()]

    def noted(outcome):
        return verdicts.noted(table, [v.model_copy(update={"verdict": outcome}) for v in found])

    note = noted("differs").footnotes[1]
    assert (note.mark, note.cells) == ("b", (("sft", "seen"), ("eto", "seen"))) and note.text.startswith("Differs")
    assert "(paper 50.0, note b)" in markdown(noted("differs"))
    assert noted("agrees").footnotes[1].text.startswith("Agrees")
    assert noted("cannot tell") == noted("not run") == table


ORDER = {"kind": "ordering", "better": "coevolve", "than": "sft", "column": "seen"}


def test_cells_and_orders_are_asked_of_evaluations_in_points(measure):
    sft = measure("sft", "sciworld", "seen", {"a": [0.5, 0.7], "b": [0.3, 0.1], "c": [0.4, 0.4]})
    first, last = (
        measure("coevolve", "sciworld", "seen", {"a": [r, r], "b": [r, r], "c": [r, r]}, iteration=i)
        for i, r in ((1, 0.3), (2, 0.9))
    )
    claims = small(
        order=ORDER,
        early=ORDER | {"iteration": 1},
        size=ORDER | {"kind": "difference", "value": 50.0, "rival": 0.0},
    )
    found = asked(claims, [sft, first, last])
    assert found["sft_seen"].estimates[0].mean == pytest.approx(40.0)
    assert found["order"].estimates[0].mean == found["size"].estimates[0].mean == pytest.approx(50.0)
    assert found["early"].estimates[0].mean == pytest.approx(-10.0)
    assert found["size"].estimates[0].of_tasks == 0.0 < found["order"].estimates[0].of_tasks


def test_a_mean_weighs_every_column_the_same_and_the_largest_gain_compares_columns(measure):
    seen = [measure(m, "sciworld", "seen", {key: [r] for key in "abc"}) for m, r in (("sft", 0.1), ("coevolve", 0.2))]
    shop = [measure(m, "webshop", "test", {"x": [r]}) for m, r in (("sft", 0.1), ("coevolve", 0.6))]
    gain = ORDER | {"kind": "largest_gain", "column": "shop", "among": ["seen"]}
    claims = small(order=ORDER | {"column": "mean"}, gain=gain)
    assert asked(claims, seen)["order"].missing == "`coevolve` was not evaluated on Shop."
    found = asked(claims, [*seen, *shop])
    assert found["order"].estimates[0].mean == pytest.approx(30.0)
    assert found["gain"].estimates[0].mean == pytest.approx(40.0)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"model": "Qwen3-4B"}, "model Qwen3-4B, not tiny"),
        ({"protocol": "paper"}, "protocol paper, not fixed"),
        ({"environment": "MariaDB, non-comparable"}, "sciworld ran in an environment marked non-comparable"),
        ({"drop": True}, "2 of the paper's 3 instructions on Seen"),
    ],
)
def test_a_claim_is_judged_only_by_what_it_is_about(measure, changed, reason):
    tasks = "ab" if changed.pop("drop", False) else "abc"
    sft, ours = (measure(m, "sciworld", "seen", {key: [0.5] for key in tasks}, **changed) for m in ("sft", "coevolve"))
    claims = small(order=ORDER)
    found = asked(claims, [sft, ours])
    assert {found[name].missing for name in ("sft_seen", "order")} == {f"not about the claim: {reason}."}
    anyway = asked(claims, [sft, ours], miniature=True)
    assert anyway["order"].estimates and "only the paper's orders" in anyway["sft_seen"].missing


def test_a_claim_about_another_model_is_not_judged_by_this_one(measure):
    sft, ours = (measure(m, "sciworld", "seen", {key: [0.5] for key in "abc"}) for m in ("sft", "coevolve"))
    claims = small(order=ORDER | {"model": "Qwen3-4B"})
    assert "model tiny, not Qwen3-4B" in asked(claims, [sft, ours])["order"].missing
    assert "only the paper's orders" in asked(claims, [sft, ours], miniature=True)["order"].missing


def test_shares_and_figure_2_are_asked_of_explorations():
    share = {"kind": "share", "method": "eto", "env": "sciworld", "value": 50.0, "rival": 0.0, "threshold": 0.6}
    figure = {"kind": "failures", "better": "coevolve", "than": "eto", "env": "sciworld", "quantity": "number"}
    compared = {name: value for name, value in share.items() if name != "method"} | {"kind": "share_difference"}
    claims = small(
        success=share | {"outcome": "success"},
        hard=share | {"outcome": "hard_negative"},
        extreme=share | {"outcome": "extreme"},
        more=figure | {"caution": "Mind the gap."},
        failures=compared | {"better": "coevolve", "than": "eto", "outcome": "failure"},
    )
    rewards = {"a": 1.0, "b": 0.6, "c": 0.0, "d": 0.2}
    eto = explored("eto", rewards)
    ours = [
        explored("coevolve", rewards),
        explored("coevolve", {"a": 0.0, "b": 0.0, "c": 1.0, "d": 0.0}, agent="failure"),
    ]
    found = asked(claims, explorations=[eto, *ours])
    assert [found[name].estimates[0].mean for name in ("success", "hard", "extreme")] == [25.0, 25.0, 50.0]
    assert found["more"].estimates[0].mean == 2.0
    # ETO fails two of four tasks; co-evolving's target as many, its failure agent three.
    assert found["failures"].estimates[0].mean == pytest.approx(100 * (5 / 8 - 2 / 4))
    assert "Mind the gap." in verdicts.judge(found["more"], 0.95).text
    assert asked(claims)["success"].missing == "`eto` did not explore sciworld."
    few = explored("eto", {"a": 1.0})
    assert asked(claims, explorations=[few])["success"].missing == (
        "not about the claim: 1 of the paper's 2 instructions on sciworld."
    )


def results(plan, rewards):
    """Records of a whole plan, by method; explorations on the way."""
    for method, reward in rewards.items():
        for of, each in plan.iterations([method], every_model=True):
            split = plan.suite.envs[of.env].splits[0]
            records = [record(f"t{task}", reward + task / 100, split=split, seed=of.seed) for task in range(20)]
            jsonl.write(Path(each.evaluation["records.jsonl"]), records)
            for agent, job in each.rollouts.items():
                own = episodes({f"t{task}": 0.5 for task in range(20)}, agent=agent, env=of.env)
                jsonl.write(Path(job["episodes.jsonl"]), own)


def test_verdicts_of_a_suites_files(root, tmp_path):
    plan = Plan(load_suite(root / "configs/suites/smoke.yaml", ["seeds=[0, 1, 2, 3]"]), root=str(tmp_path))
    results(plan, {"sft": 0.1, "eto": 0.4, "coevolve": 0.2})
    paper_claims = paper.load(root / "configs/claims.yaml")
    measured = on_disk.results(plan, paper_claims)
    assert {m.method for m in measured.measurements} == {"sft", "eto", "coevolve"} and not measured.unfinished
    plain = verdicts.verify(paper_claims, measured, plan.suite.report)
    assert {verdict.verdict for verdict in plain} == {"not run"} and verdicts.exit_status(plain) == 3
    assert not any(verdict.miniature for verdict in plain) and "In the miniature" not in verdicts.markdown(plain)

    found = verdicts.verify(paper_claims, measured, plan.suite.report, miniature=True)
    assert [verdict.model_copy(update={"miniature": None}) for verdict in found] == plain
    orders = {verdict.claim: verdict.miniature for verdict in found if verdict.miniature}
    of_two_environments = {"webshop_better", "sciworld_seen_better"}
    assert of_two_environments <= orders.keys() and not orders.keys() & {"mean_better", "webshop_gain", "eto_webshop"}
    better = orders["webshop_better"]
    assert (better.verdict, better.seeds, better.tasks) == ("differs", 4, 20)
    assert better.mean == pytest.approx(-20.0) and better.high < 0 and better.seeds_needed is None
    assert " failures (20 tasks, 4 seeds): " in orders["more_failures_webshop"].text
    counts = verdicts.write(found, tmp_path)
    assert sum(counts.values()) == len(found)
    assert product_file.read(tmp_path / "verdicts.json", list[verdicts.Verdict]) == found
    text = (tmp_path / "verdicts.md").read_text()
    assert text.index("## Verdicts") < text.index("## In the miniature")
    assert "* `webshop_better`, differs: The paper above 0, here -20.0 [-20.0, -20.0] points (20 tasks" in text
    assert "* `ppo` was not evaluated on WebShop. Claims: `ppo_webshop`, " in text


def test_an_unfinished_method_is_named_with_its_finished_seeds(root, tmp_path):
    """Seed 2 of coevolve lacks an exploration, and rft its evaluations in WebShop; other rows have only iteration 0."""
    plan = Plan(load_suite(root / "configs/suites/smoke.yaml", ["seeds=[0, 1, 2]"]), root=str(tmp_path))
    results(plan, {"sft": 0.1, "eto": 0.4, "coevolve": 0.2, "rft": 0.3})
    of = ("webshop", "coevolve", "tiny", 2, 2, "failure")
    lost = [file for file in plan.explorations(["coevolve"]) if file[1:] == of]
    lost += [file for file in plan.records(["rft"]) if (file.env, file.iteration) == ("webshop", 1)]
    for file in lost:
        Path(file.path).unlink()
    measured = on_disk.results(plan, paper.load(root / "configs/claims.yaml"))
    assert {m.method for m in measured.measurements} == {"sft", "eto"}
    some = "`coevolve` is unfinished: 2 of 3 seeds have all results; finish the run, or judge the finished seeds with "
    assert measured.unfinished["coevolve", "webshop"] == some + "`--set 'seeds=[0, 1]'`."
    assert measured.unfinished["rft", "sciworld"] == (
        "`rft` is unfinished: 0 of 3 seeds have all results; finish the run."
    )
    assert {method for method, _ in measured.unfinished} == {"coevolve", "rft"}


def test_the_command_names_an_unfinished_method_where_its_verdicts_would_stand(made, tmp_path, monkeypatch, coevolve):
    monkeypatch.chdir(made)
    status, printed, _ = coevolve("verify", "--suite", "glance", "--set", "seeds=[0, 1]", "--out", tmp_path)
    reason = "`coevolve` is unfinished: 1 of 2 seeds have all results; finish the run, or judge the finished seeds with"
    assert status == 3
    assert printed.startswith(
        "## Verdicts\n\nNone of 62 claims judged in this suite. From secondary sources, unverified: None of 15 "
    )
    (line,) = re.findall(rf"^\* {re.escape(reason)}.*Claims: (.*)\.$", printed, re.MULTILINE)
    assert {"`webshop_better`", "`ours_success`"} <= {*line.split(", ")}
    assert "Agent-data mutual evolution" not in printed
    assert "\n## Unfinished methods\n\nThey have no verdict, and no order in the miniature.\n\n* `sft` is un" in printed
    assert printed.count(f"\n* {reason}") == 2 and "`coevolve` was not evaluated on WebShop" not in printed
    assert "## Unfinished methods" in (tmp_path / "verdicts.md").read_text()
    _, printed, _ = coevolve("verify", "--suite", "glance", "--set", "seeds=[0, 1]", "--set", "seeds=[0]")
    assert "unfinished" not in printed and "## In the miniature" in printed


def test_only_suites_with_small_models_are_miniatures(root):
    suites = {name: load_suite(name) for name in ("micro", "real", "paper", "in_context")}
    assert [name for name, suite in suites.items() if verdicts.is_miniature(suite)] == ["micro", "real"]
