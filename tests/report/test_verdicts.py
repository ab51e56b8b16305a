import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import record
from report.explored import claim, episodes, explored

from coevolve.config.loading import load_suite
from coevolve.pipeline.plan import Plan
from coevolve.report import claims as paper
from coevolve.report import stats, verdicts
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
            "tolerance": 5.0,
            "explored": {"sciworld": 2},
            "columns": COLUMNS,
            "rows": {"sft": {"label": "SFT", "place": "row 1", "cells": {"seen": 50.0}}},
            "facts": [],
            "statements": {
                name: {"text": "it says", "place": "section 5"} | given for name, given in statements.items()
            },
        }
    )


def asked(claims, measurements=(), explorations=(), as_if=False):
    results = Results(tuple(measurements), tuple(explorations))
    return {q.name: q for q in prepare(claims, results, resamples=500, as_if=as_if)}


def question(values_ts, low=0.0, high=math.inf, name="it", resamples=3000, rng=None, **about):
    rng = rng or np.random.default_rng(0)
    found = stats.spread([np.array(values_ts)], resamples=resamples, rng=rng)
    return ClaimTest(name, claim(low, high, **about), (found,))


def outcome(*arguments, **options):
    return verdicts.judge([question(*arguments, **options)], 0.95)[0].verdict


@pytest.mark.parametrize(
    ("mean", "low", "high", "expected"),
    [
        (5.0, 0.0, math.inf, "reproduced"),
        (-5.0, 0.0, math.inf, "contradicted"),
        (0.1, 0.0, math.inf, "undecided"),
        (5.0, 2.0, 8.0, "reproduced"),
        (10.0, 2.0, 8.0, "contradicted"),
        (7.8, 2.0, 8.0, "undecided"),
        (0.5, 2.0, 8.0, "contradicted"),
    ],
)
def test_a_verdict_is_where_the_interval_lies(mean, low, high, expected):
    values = mean + np.random.default_rng(1).normal(0, 3.0, (200, 3))
    assert outcome(values, low, high) == expected


def test_few_tasks_that_agree_decide_nothing():
    assert outcome(np.full((4, 3), 2.0)) == "undecided"
    assert outcome(np.full((12, 3), 2.0)) == "reproduced"
    assert outcome(np.full((12, 2), 2.0)) == "undecided"  # two trainings


def test_more_claims_ask_for_no_more_seeds():
    rng = np.random.default_rng(0)
    one = question(np.array([-0.6, 0.8, 1.4]) + rng.normal(0, 1.0, (100, 3)))
    others = [question(rng.normal(0, 1.0, (100, 3)), name=f"other{i}") for i in range(40)]
    alone, together = (verdicts.judge(asked_, 0.95)[0] for asked_ in ([one], [one, *others]))
    assert alone.verdict == together.verdict == "undecided"
    assert 3 < alone.seeds_needed == together.seeds_needed  # each is judged alone


def test_p_values_are_two_sided_and_corrected():
    one, other = question(np.full((60, 3), 2.0)), question(np.full((60, 3), -2.0), name="other")
    together = verdicts.judge([one, other], 0.95)
    assert [v.p for v in together] == pytest.approx([2 / 3001] * 2)
    assert "p 0.000666, corrected for 2 claims 0.00133" in together[0].text


def test_undecided_says_what_would_help():
    one = verdicts.judge([question(np.random.default_rng(0).normal(0.1, 3.0, (50, 1)))], 0.95)[0]
    assert one.seeds_needed == 3 and "Fewer than 3 seeds never decide" in one.text
    tasks = np.random.default_rng(0).normal(0.1, 3.0, (50, 1)) + np.random.default_rng(1).normal(0, 0.01, (50, 3))
    never = verdicts.judge([question(tasks)], 0.95)[0]
    assert never.seeds_needed is None and "No number of seeds" in never.text


def test_a_value_on_the_limit_of_its_claim_is_no_matter_of_seeds_or_instructions(measure):
    equal = [measure(m, "sciworld", "seen", {key: [0.5] * 3 for key in "abc"}) for m in ("sft", "coevolve")]
    (order,) = verdicts.judge([asked(small(order=ORDER), equal)["order"]], 0.95)
    reason = "A measured value lies on the limit of the claim: no number of seeds would decide, were this the truth."
    assert order.verdict == "undecided" and order.seeds_needed is None
    assert order.text.endswith(reason) and "too few" not in order.text


def test_exit_status_and_summary():
    def of(*outcomes):
        (not_run,) = verdicts.judge([replace(question([[0.0]]), spreads=(), missing="not evaluated")], 0.95)
        assert (not_run.verdict, not_run.text) == ("not run", "not evaluated")
        return [not_run.model_copy(update={"verdict": outcome}) for outcome in outcomes]

    assert verdicts.exit_status(of("reproduced", "undecided", "not run")) == 0
    assert verdicts.exit_status(of("reproduced", "contradicted")) == 1
    assert verdicts.exit_status(of("undecided", "not run")) == 3
    assert verdicts.summary(of("reproduced", "not run", "not run")) == (
        "1 of 3 claims judged in this suite: 1 reproduced."
    )


def test_what_only_a_secondary_source_says_is_counted_and_corrected_apart():
    sure = question(np.full((60, 3), 2.0))
    others = [question(np.full((60, 3), -2.0), name=f"other{i}", unverified=True) for i in range(40)]
    alone, together = verdicts.judge([sure], 0.95), verdicts.judge([sure, *others], 0.95)
    assert alone[0] == together[0] and together[1].verdict == "contradicted"
    assert verdicts.exit_status(together) == 0
    assert verdicts.summary(together) == (
        "1 of 1 claims judged in this suite: 1 reproduced. "
        "From secondary sources, unverified: 40 of 40 claims judged in this suite: 40 contradicted."
    )
    assert "| contradicted (unverified) | other0 " in verdicts.markdown(together)


def test_cells_of_a_table_get_notes_after_its_own(measure, report):
    sft = measure("sft", "sciworld", "seen", {key: [0.5] for key in "abc"})
    table = MeasuredCells.of([sft], small(), ReportLabels({}, {}), report).reward_table()
    table = table.model_copy(update={"footnotes": (Footnote(mark="a", text="a fact", cells=()),)})
    found = verdicts.judge(list(asked(small(), [sft]).values()), 0.95)

    def noted(outcome):
        return verdicts.noted(table, [v.model_copy(update={"verdict": outcome}) for v in found])

    note = noted("contradicted").footnotes[1]
    assert (note.mark, note.cells) == ("b", (("sft", "seen"),)) and note.text.startswith("Contradicted")
    assert "(paper 50.0, note b)" in markdown(noted("contradicted"))
    assert noted("reproduced").footnotes[1].text.startswith("Reproduced")
    assert noted("undecided") == noted("not run") == table


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
        size=ORDER | {"kind": "difference", "value": 50.0, "tolerance": 1.0},
    )
    found = asked(claims, [sft, first, last])
    assert found["sft_seen"].spreads[0].mean == pytest.approx(40.0)
    assert found["sft_seen"].claim.limits == (45.0, 55.0)
    assert found["order"].spreads[0].mean == found["size"].spreads[0].mean == pytest.approx(50.0)
    assert found["early"].spreads[0].mean == pytest.approx(-10.0)
    assert found["size"].claim.limits == (49.0, 51.0)


def test_a_mean_weighs_every_column_the_same_and_the_largest_gain_compares_columns(measure):
    seen = [measure(m, "sciworld", "seen", {key: [r] for key in "abc"}) for m, r in (("sft", 0.1), ("coevolve", 0.2))]
    shop = [measure(m, "webshop", "test", {"x": [r]}) for m, r in (("sft", 0.1), ("coevolve", 0.6))]
    gain = ORDER | {"kind": "largest_gain", "column": "shop", "among": ["seen"]}
    claims = small(order=ORDER | {"column": "mean"}, gain=gain)
    assert asked(claims, seen)["order"].missing == "`coevolve` was not evaluated on Shop."
    found = asked(claims, [*seen, *shop])
    assert found["order"].spreads[0].mean == pytest.approx(30.0)
    assert found["gain"].spreads[0].mean == pytest.approx(40.0)


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
    for question_ in asked(claims, [sft, ours]).values():
        assert question_.missing == f"not about the claim: {reason}."
    anyway = asked(claims, [sft, ours], as_if=True)
    assert anyway["order"].spreads and "as if: only the paper" in anyway["sft_seen"].missing


def test_a_claim_about_another_model_is_not_judged_by_this_one(measure):
    sft, ours = (measure(m, "sciworld", "seen", {key: [0.5] for key in "abc"}) for m in ("sft", "coevolve"))
    claims = small(order=ORDER | {"model": "Qwen3-4B"})
    assert "model tiny, not Qwen3-4B" in asked(claims, [sft, ours])["order"].missing
    assert "as if" in asked(claims, [sft, ours], as_if=True)["order"].missing


def test_shares_and_figure_2_are_asked_of_explorations():
    share = {"kind": "share", "method": "eto", "env": "sciworld", "value": 50.0, "tolerance": 5.0, "threshold": 0.6}
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
    assert [found[name].spreads[0].mean for name in ("success", "hard", "extreme")] == [25.0, 25.0, 50.0]
    assert found["more"].spreads[0].mean == 2.0
    # ETO fails two of four tasks; co-evolving's target as many, its failure agent three.
    assert found["failures"].spreads[0].mean == pytest.approx(100 * (5 / 8 - 2 / 4))
    assert "Mind the gap." in verdicts.judge([found["more"]], 0.95)[0].text
    assert asked(claims)["success"].missing == "`eto` did not explore sciworld."
    few = explored("eto", {"a": 1.0})
    assert asked(claims, explorations=[few])["success"].missing == (
        "not about the claim: 1 of the paper's 2 instructions on sciworld."
    )


def test_one_claim_more_changes_no_other_ones_numbers(measure):
    sft = measure("sft", "sciworld", "seen", {"a": [0.5], "b": [0.3], "c": [0.4]})
    ours = measure("coevolve", "sciworld", "seen", {"a": [0.6], "b": [0.9], "c": [0.4]})
    alone, together = asked(small(order=ORDER), [sft, ours]), asked(small(other=ORDER, order=ORDER), [ours, sft])
    draws = [found.spreads[0].draws_b for found in (alone["order"], together["order"], together["other"])]
    assert np.array_equal(draws[0], draws[1]) and not np.array_equal(draws[0], draws[2])


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
    plan = Plan(load_suite(root / "configs/suites/smoke.yaml", ["seeds=[0, 1, 2]"]), root=str(tmp_path))
    results(plan, {"sft": 0.1, "eto": 0.4, "coevolve": 0.2})
    paper_claims = paper.load(root / "configs/claims.yaml")
    measured = on_disk.results(plan, paper_claims)
    assert {m.method for m in measured.measurements} == {"sft", "eto", "coevolve"} and not measured.unfinished
    found = verdicts.verify(paper_claims, measured, plan.suite.report, as_if=True)
    by_name = {verdict.claim: verdict for verdict in found}
    assert by_name["webshop_better"].verdict == "contradicted" and by_name["better_than_ppo"].verdict == "not run"
    assert verdicts.exit_status(found) == 1
    counts = verdicts.write(found, tmp_path, as_if=True)
    assert sum(counts.values()) == len(found)
    rows = json.loads((tmp_path / "verdicts.json").read_text())
    assert {"claim", "place", "verdict", "text"} <= rows[0].keys() and len(rows) == len(found)
    text = (tmp_path / "verdicts.md").read_text()
    assert "As if" in text and "| contradicted | webshop_better" in text
    assert "* `ppo` was not evaluated on WebShop. Claims: `better_than_ppo`." in text
    plain = verdicts.verify(paper_claims, measured, plan.suite.report)
    assert {verdict.verdict for verdict in plain} == {"not run"} and verdicts.exit_status(plain) == 3
    assert not any(verdict.miniature for verdict in plain) and verdicts.miniature_markdown(plain) == ""

    small_ones = verdicts.verify(paper_claims, measured, plan.suite.report, miniature=True)
    assert [verdict.model_copy(update={"miniature": None}) for verdict in small_ones] == plain
    orders = {verdict.claim: verdict.miniature for verdict in small_ones if verdict.miniature}
    of_two_environments = {"webshop_better", "sciworld_seen_better"}
    assert of_two_environments <= orders.keys() and not orders.keys() & {"mean_better", "webshop_gain", "eto_webshop"}
    better = orders["webshop_better"]
    assert (better.outcome, better.unit, better.seeds, better.tasks) == ("does not hold", "points", 3, 20)
    assert better.mean == pytest.approx(-20.0) and better.high < 0 and better.seeds_needed is None
    assert orders["more_failures_webshop"].unit == "failures"
    verdicts.write(small_ones, tmp_path)
    assert product_file.read(tmp_path / "verdicts.json", list[verdicts.Verdict]) == small_ones
    text = (tmp_path / "verdicts.md").read_text()
    assert text.index("## Verdicts") < text.index("## In the miniature")
    assert "| decided: does not hold | webshop_better" in text and verdicts.miniature_summary(small_ones) in text


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
    assert printed.startswith("None of 62 claims judged in this suite. From secondary sources, unverified: None of 15 ")
    (line,) = re.findall(rf"^\* {re.escape(reason)}.*Claims: (.*)\.$", printed, re.MULTILINE)
    assert {"`webshop_better`", "`ours_success`"} <= {*line.split(", ")}
    assert "Agent-data mutual evolution" not in printed
    assert "\n## Unfinished methods\n\nThey have no verdict, and no order in the miniature.\n\n* `sft` is un" in printed
    assert printed.count(f"\n* {reason}") == 2 and "`coevolve` was not evaluated on WebShop" not in printed
    assert "## Unfinished methods" in (tmp_path / "verdicts.md").read_text()
    _, printed, _ = coevolve("verify", "--suite", "glance", "--set", "seeds=[0, 1]", "--set", "seeds=[0]")
    assert "unfinished" not in printed and "## In the miniature" in printed


def test_a_claim_about_three_numbers_is_false_at_three_times_the_p_value_of_one():
    """A gain is the largest if it is above each of the others: true if all are, false if one is not (Bonferroni)."""

    def spread(below):
        draws = np.where(np.arange(999) < below, -1.0, 1.0)
        return stats.Spread(0.5, draws, 30, 3, of_tasks=0.0, of_seeds=1.0, fixed_tasks=True)

    def test(*counts):
        return ClaimTest("it", claim(), tuple(map(spread, counts)))

    assert verdicts.tails(test(9)) == pytest.approx((2 * 10 / 1000, 1.0))
    assert verdicts.tails(test(9, 9, 19)) == pytest.approx((2 * 20 / 1000, 1.0))
    assert verdicts.tails(test(990)) == pytest.approx((1.0, 2 * 10 / 1000))
    assert verdicts.tails(test(990, 9, 9)) == pytest.approx((1.0, 3 * 2 * 10 / 1000))


def test_only_suites_with_small_models_are_miniatures(root):
    suites = {name: load_suite(name) for name in ("micro", "real", "paper", "in_context")}
    assert [name for name, suite in suites.items() if verdicts.is_miniature(suite)] == ["micro", "real"]


@pytest.mark.parametrize(
    ("mean", "noise", "seeds", "outcome", "remark"),
    [
        (5.0, 1.0, 4, "holds", ""),
        (-5.0, 1.0, 4, "does not hold", ""),
        (5.0, 0.0, 2, "undecided", "Fewer than 3 seeds never decide"),
        (0.0, 12.0, 4, "undecided", "seeds would give +-3 points, if trainings differ as these do."),
        (0.0, 0.2, 4, "undecided", "within about +-3 points"),
    ],
)
def test_an_order_in_the_miniature_is_decided_or_undecided(mean, noise, seeds, outcome, remark):
    effects_s = np.linspace(-noise, noise, seeds)
    test = question(mean + effects_s + np.random.default_rng(0).normal(0, 0.1, (100, seeds)))
    order = verdicts.in_miniature(test, 0.95)
    assert (order.outcome, order.seeds, order.unit) == (outcome, seeds, "points")
    assert remark in order.text and order.mean == pytest.approx(mean, abs=0.1)


def test_too_few_tasks_are_no_matter_of_seeds():
    tasks = np.random.default_rng(0).normal(0, 30.0, (20, 1)) + np.random.default_rng(1).normal(0, 0.1, (20, 4))
    order = verdicts.in_miniature(question(tasks - tasks.mean()), 0.95)
    assert (order.outcome, order.seeds_needed) == ("undecided", None) and "the tasks are too few" in order.text
