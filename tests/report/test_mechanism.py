"""The mechanism of a finished suite: what the product prints is what its episodes, pairs, scores and trainings have."""

import contextlib
import json
import math
from collections import defaultdict
from statistics import fmean

import builders
import pytest
import torch
from report.explored import explored

from coevolve.chat.chat_template import Renderer
from coevolve.config.loading import load_suite
from coevolve.pipeline.branch import Branch
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stage import Subject
from coevolve.policies import loading
from coevolve.records.episodes import Trajectory
from coevolve.records.pairs import PairKind, PreferencePair
from coevolve.report import analysis, drawing, failure_figures, mechanism
from coevolve.report.exploration import AgentRecord
from coevolve.report.labels import ReportLabels, kind_label
from coevolve.storage import jsonl, product_file, provenance
from coevolve.train import reference_logps

PRODUCT = "results/glance/paper/failures"


@pytest.fixture(scope="module")
def plan(made):
    with contextlib.chdir(made):
        return Plan(load_suite("configs/glance.yaml"))


@pytest.fixture(scope="module")
def measured(made):
    return product_file.read(made / PRODUCT / "analysis.json", mechanism.Mechanism)


def training(made, plan, env, branch, agent):
    """The provenance of the policy that an agent has after an iteration."""
    policy = plan.paper.iteration(Subject("tiny", env, branch)).policies[agent]
    return provenance.read(made / policy["provenance.json"])


def test_hard_negatives_are_failures_from_the_threshold_on():
    counted = mechanism.hard_negatives(explored("eto", {"a": 1.0, "b": 0.75, "c": 0.6, "d": 0.59, "e": -1.0}), 0.6)
    assert (counted.hard, counted.of_episodes, counted.of_failures) == (2, 2 / 5, 2 / 4)
    assert mechanism.hard_negatives(explored("eto", {"a": 1.0}), 0.6).of_failures is None


def test_the_hard_negatives_of_a_suite_are_those_of_its_episodes(made, plan, measured):
    files = plan.explorations(plan.suite.methods)
    explorations = {(each.method, each.env, each.seed, each.iteration, each.agent): each.path for each in files}
    assert len(measured.hard_negatives) == len(explorations) > 2
    for row in measured.hard_negatives:
        path = explorations[row.method, row.env, row.seed, row.iteration, row.agent]
        rewards = [episode.reward for episode in jsonl.read(made / path, Trajectory)]
        assert (row.hard, row.episodes) == (sum(0.6 <= reward < 1.0 for reward in rewards), len(rewards))


def test_a_row_whose_turns_are_flawed_is_named_where_it_stands(made, plan):
    labels, turns = ReportLabels.of(plan.suite), defaultdict(list)
    for file in plan.explorations(plan.suite.methods):
        row = f"{labels.method(file.method)}, {labels.env(file.env)}, {file.agent} agent: "
        turns[row] += [turn for episode in jsonl.read(made / file.path, Trajectory) for turn in episode.turns]
    flawed = {
        row: fmean(turn.truncated or turn.action is None or not turn.text.strip() for turn in of_row)
        for row, of_row in turns.items()
    }
    remark = product_file.read(made / PRODUCT / "analysis.json", analysis.Analysis).remark
    assert {row for row in flawed if row in remark} == {row for row, share in flawed.items() if share > 0.1}
    assert remark in (made / PRODUCT / "analysis.md").read_text()
    table = (made / "results/glance/paper/table1/table1.md").read_text()
    (path,) = made.glob("results/glance/tiny/webshop/coevolve/seed0/iter*/eval/episodes.jsonl")
    cut = fmean(turn.truncated for episode in jsonl.read(path, Trajectory) for turn in episode.turns)
    assert cut > 0.1 and f"Co-evolving, WebShop: {100 * cut:.0f} % cut at the token limit" in table


def test_the_rewards_of_a_suites_pairs_are_those_of_their_trajectories(made, plan, measured):
    """By way of the digests: the pairs' own rewards are not read."""
    kinds = [(row.method, row.agent, row.kind) for row in measured.pair_rewards]
    assert ("eto", "target", "expert_target") in kinds and ("coevolve", "target", "expert_failure") in kinds
    for row in measured.pair_rewards:
        branch = f"{row.method}/seed{row.seed}/iter{row.iteration}"
        wildcards = {"model": "tiny", "env": row.env, "branch": branch, "agent": row.agent}
        inputs = plan.require("pairs", wildcards).inputs
        paths = [inputs[name] for name in ("experts", "target", "failure") if name in inputs]
        rewards = {e.digest(): e.reward for path in paths for e in jsonl.read(made / path, Trajectory)}
        pairs = jsonl.read(made / plan.require("train", wildcards).inputs["pairs"], PreferencePair)
        of_kind = [(rewards[p.chosen_id], rewards[p.rejected_id]) for p in pairs if p.kind == row.kind]
        assert row.pairs == len(of_kind) > 0
        assert (row.chosen, row.rejected) == pytest.approx([fmean(side) for side in zip(*of_kind, strict=True)])
        hard = [sum(0.6 <= reward < 1.0 for reward in side) / row.pairs for side in zip(*of_kind, strict=True)]
        assert (row.chosen_hard, row.rejected_hard) == pytest.approx(hard)


def test_hard_negatives_among_the_sides_of_pairs():
    names = AgentRecord(method="coevolve", env="webshop", seed=0, iteration=1, agent="target")
    of_failures, of_experts = PairKind.FAILURE_FAILURE, PairKind.EXPERT_TARGET
    pairs = [pair(of_failures, 0.75, 0.6), pair(of_failures, 0.75, -1.0), pair(of_experts, 1.0, 0.59)]
    failures, experts = mechanism.pair_rewards(pairs, names, 0.6)
    assert (failures.pairs, failures.chosen_hard, failures.rejected_hard) == (2, 1.0, 0.5)
    assert (failures.chosen, failures.rejected) == pytest.approx((0.75, -0.2))
    assert (experts.kind, experts.chosen_hard, experts.rejected_hard) == ("expert_target", 0.0, 0.0)


def pair(kind, chosen, rejected):
    return builders.pair(builders.episode("a", chosen), builders.episode("a", rejected), kind)


def test_the_distance_of_a_suite_is_that_of_its_pairs_and_scores(made, plan, measured):
    """From the files on disk, without the notes of the trainings."""
    trained = {(row.method, row.agent, row.iteration) for row in measured.off_policy}
    assert trained >= {("eto", "target", 1), ("coevolve", "target", 1)}
    for row in measured.off_policy:
        branch = f"{row.method}/seed{row.seed}/iter{row.iteration}"
        wildcards = {"model": "tiny", "env": row.env, "branch": branch, "agent": row.agent}
        inputs = plan.require("train", wildcards).inputs
        renderer = Renderer(loading.load_tokenizer((made / inputs["start"]).parent))
        scores = reference_logps.read(made / inputs["scores"])
        pairs = [pair for pair in jsonl.read(made / inputs["pairs"], PreferencePair) if pair.kind == row.kind]
        actions = []
        for pair in pairs:
            side = renderer.render(pair.prompt, pair.rejected, pair.rejected_token_ids)
            ids = side.input_ids[: plan.suite.models["tiny"].context]
            actions.append(scores.lookup(ids)[torch.tensor(side.action_mask[1 : len(ids)], dtype=torch.bool)])
        assert row.pairs == len(pairs)
        assert row.rejected == pytest.approx(float(torch.cat(actions).mean()), rel=1e-5)
        assert row.rejected < 0.0 and row.chosen < 0.0


def test_weights_of_a_suite_are_those_of_its_logged_margins(made, plan, measured):
    assert {row.method for row in measured.kind_weights} == {"eto", "coevolve"}
    for method, agent in {(row.method, row.agent) for row in measured.kind_weights}:
        rows = [row for row in measured.kind_weights if (row.method, row.agent) == (method, agent)]
        job = training(made, plan, "webshop", Branch(method, 0, 1), agent)
        (beta, *_) = job.config["dpo"]["beta"]
        for row in rows:
            steps = [step for step in job.notes.history if f"{row.kind}/pairs" in step]
            weight = plan.suite.recipes[method].agents[agent].trains_on[PairKind(row.kind)].dpo
            values = [
                step[f"{row.kind}/pairs"] * weight * beta / (1 + math.exp(step[f"{row.kind}/rewards/margins"]))
                for step in steps
            ]
            assert row.visits == sum(step[f"{row.kind}/pairs"] for step in steps)
            assert row.total == pytest.approx(sum(values)) and row.per_pair == pytest.approx(row.total / row.visits)
        assert sum(row.share for row in rows) == pytest.approx(1.0)


def test_another_objective_has_no_such_weight(made, plan):
    job = training(made, plan, "webshop", Branch("eto", 0, 1), "target")
    branch, recipe = {"method": "eto", "seed": 0, "iteration": 1}, plan.suite.recipes["eto"]
    assert mechanism.kind_weights(job, branch, recipe)
    ipo = {"dpo": job.config["dpo"] | {"objective": {"name": "ipo"}}}
    assert mechanism.kind_weights(job.model_copy(update={"config": ipo}), branch, recipe) == []


def test_the_gradients_of_a_suite_are_those_of_its_files(made, plan, measured):
    files = plan.gradients()
    assert {file.method for file in files} == {row.method for row in measured.gradients} == {"eto", "coevolve"}
    for file in files:
        points = json.loads((made / file.path).read_text())
        for policy in ("start", "end"):
            of = (file.method, file.agent, policy)
            rows = [row for row in measured.gradients if (row.method, row.agent, row.policy) == of]
            kinds = {each["kind"]: each for each in points[policy]["kinds"]}
            assert [row.kind for row in rows] == list(kinds)
            assert sum(row.share for row in rows) == pytest.approx(1.0)
            for row in rows:
                of_kind = kinds[row.kind]
                assert (row.pairs, row.measured_pairs) == (of_kind["pairs"], min(3, of_kind["pairs"]))
                assert (row.total, row.dpo_share) == (of_kind["loss"]["total_norm"], of_kind["dpo"]["share"])
    angles = [(row.kind, row.other_kind, row.policy) for row in measured.gradient_angles if row.method == "coevolve"]
    assert len(angles) == len(set(angles)) > 0 and all(abs(row.cosine) <= 1 for row in measured.gradient_angles)


def test_a_suite_that_measures_no_gradients_has_no_tables_of_them(measured):
    off = measured.model_copy(update={"gradients": (), "gradient_angles": ()})
    tables = mechanism.tables(off)
    of_pairs = ["Rewards of chosen and rejected sides", "Off-policy distance", "Weight of pair kinds"]
    assert list(tables) == ["Hard negatives", *of_pairs]
    assert "whose norms are not recorded" in tables["Weight of pair kinds"][0]


@pytest.mark.parametrize("sample", ["gold", "explored"])
def test_log_probs_before_and_after_are_those_that_the_trainings_noted(made, plan, sample):
    rows = [
        row for row in json.loads((made / PRODUCT / "analysis.json").read_text())[sample] if row["agent"] == "target"
    ]
    assert {row["method"] for row in rows} == {"eto", "coevolve"}
    for row in rows:
        branch = Branch(row["method"], row["seed"], row["iteration"])
        noted = getattr(training(made, plan, row["env"], branch, row["agent"]).notes, sample)
        assert (row["before"], row["after"]) == (noted.before, noted.after) and noted.before is not None


def test_the_figure_draws_them(made, measured):
    labels = ReportLabels({"untrained": "Untrained", "eto": "ETO", "coevolve": "Co-evolving"}, {"webshop": "WebShop"})
    data = product_file.read(made / PRODUCT / "analysis.json", analysis.Analysis)
    shown = drawing.drawn(lambda: failure_figures.draw_mechanism(data, labels)).axes
    assert [axes.get_title() for axes in shown] == [
        f"WebShop: {title}" for title in ("share of gradient", "log-prob of experts", "log-prob of own\nepisodes")
    ], "no curve of one iteration"
    figure = failure_figures.draw_mechanism(data, labels)
    figure.draw_without_rendering()
    hard, gradients, experts, episodes = figure.axes[:4]
    kinds = [kind_label(kind) for kind in ("expert_target", "expert_failure")]
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named == ["ETO", "Co-evolving", "failure agent", *kinds]
    assert not any(figure.legends[0].get_window_extent().overlaps(axes.get_tightbbox()) for axes in figure.axes)
    assert [axes.get_title() for axes in (hard, experts)] == ["WebShop: hard negatives", "WebShop: log-prob of experts"]
    drawn = {(line.get_color(), line.get_linestyle()): list(line.get_ydata()) for line in hard.lines}
    for method, agent, style in (("eto", "target", "-"), ("coevolve", "target", "-"), ("coevolve", "failure", "--")):
        rows = [row for row in measured.hard_negatives if (row.method, row.agent) == (method, agent)]
        of_one_seed = drawn[drawing.series_colour(labels.colour(method)), style]
        assert of_one_seed == [row.of_episodes for row in rows]
    shares = [r for r in measured.gradients if (r.method, r.agent, r.policy) == ("coevolve", "target", "start")]
    widths = [bar.get_width() for bar in gradients.patches if bar.get_y() > 0.5]  # the second bar
    # A bar's width is a difference of its ends, rounded.
    assert [width for width in widths if width] == pytest.approx([row.share for row in sorted(shares, key=_order)])
    for axes, rows in ((experts, data.gold), (episodes, data.explored)):
        ends = [list(line.get_ydata()) for line in axes.lines]
        assert ends == [[row.before, row.after] for row in rows if row.agent == "target"] and len(ends) == 2
    panels = {axes.get_title().replace("\n", " "): axes.lines for axes in figure.axes}
    by_kind = {title: {line.get_label(): list(line.get_ydata()) for line in lines} for title, lines in panels.items()}
    (eto,) = (row for row in measured.off_policy if row.method == "eto")
    assert by_kind["WebShop: ETO, target agent: rejected sides, nats"] == {"expert over target": [eto.rejected]}
    for quantity, rows in {"weight": measured.kind_weights, "gradient": shares}.items():
        ours = [row for row in rows if (row.method, row.agent) == ("coevolve", "target")]
        drawn = by_kind[f"WebShop: Co-evolving, target agent: share of {quantity}"]
        assert ours and drawn == {kind_label(row.kind): [row.share] for row in ours}


def test_the_figure_leaves_out_what_was_not_measured(made):
    labels, nothing = ReportLabels({"eto": "ETO"}, {"webshop": "WebShop"}), analysis.Analysis()
    assert [each.get_text() for each in failure_figures.draw_mechanism(nothing, labels).texts] == [
        "Nothing was measured."
    ]
    full = product_file.read(made / PRODUCT / "analysis.json", analysis.Analysis)
    older = full.model_copy(update=dict.fromkeys(("explored", "gradients", "off_policy", "kind_weights"), ()))
    two = ReportLabels({"eto": "ETO"}, {"webshop": "WebShop", "sciworld": "ScienceWorld"})
    for envs in (labels, two):
        titles = [axes.get_title() for axes in failure_figures.draw_mechanism(older, envs).axes]
        assert titles == ["WebShop: hard negatives", "WebShop: log-prob of experts"]


def _order(row):
    return list(PairKind).index(PairKind(row.kind))
