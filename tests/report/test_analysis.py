import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as some
from report.explored import episode, explored

from coevolve.config.machine import load_machine
from coevolve.config.suite import load_suite
from coevolve.envs.registry import is_refused
from coevolve.report import analysis, examples, pair_counts
from coevolve.report import claims as paper
from coevolve.report.exploration import Exploration
from coevolve.storage import files, jsonl
from coevolve.types import Turn
from coevolve.workflow import analysis_files as stage
from coevolve.workflow.explorations import explorations
from coevolve.workflow.plan import Plan

WORDS = some.lists(some.sampled_from("abcd"), max_size=7)


def of(*episodes, **names):
    given_ = {"model": "tiny", "protocol": "fixed", "method": "eto", "env": "sciworld", "seed": 0, "iteration": 1}
    return Exploration(**given_ | names, agent="target", episodes=episodes)


def test_shares_add_up_at_every_threshold():
    one = explored("eto", {"a": 1.0, "b": 0.75, "c": 0.6, "d": 0.59, "e": 0.0, "f": -0.2})
    at_60, at_80 = analysis.shares(one, 0.6), analysis.shares(one, 0.8)
    assert (at_60.success, at_60.hard_negative, at_60.failure) == pytest.approx((1 / 6, 2 / 6, 3 / 6))
    assert (at_80.hard_negative, at_80.failure) == pytest.approx((0, 5 / 6))
    assert at_60.between == pytest.approx(3 / 6) and at_60.episodes == 6


def test_diversity_by_hand():
    known, refused = "You see it.", "No known action matches that input."
    one = of(
        episode("a", 0.0, ("look", "look", "go"), observations=(known, refused, known)),
        episode("b", 0.5, ("look", "look", "go")),
        episode("c", 0.0, ("go", "look")),
        episode("d", 1.0, ("win",)),
    )
    found = analysis.diversity(one, {"a": episode("a", 1.0, ("look", "go")), "c": episode("c", 1.0, ("stay",))})
    assert (found.failures, found.distinct, found.commonest) == (3, pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert found.repeated == pytest.approx(2 / 5)
    assert found.invalid == pytest.approx(1 / 8)
    assert found.first_entropy == pytest.approx(-(2 / 3 * math.log2(2 / 3) + 1 / 3 * math.log2(1 / 3)))
    assert found.distance == pytest.approx((1 / 3 + 1) / 2)


def test_what_cannot_be_measured_is_none():
    found = analysis.diversity(of(episode("a", 1.0)), {})
    assert found.failures == 0 and found.distinct is None
    found = analysis.diversity(of(episode("a", 0.0, ("look",))), {})
    assert (found.repeated, found.distance, found.first_entropy) == (None, None, 0.0)


def turn(action, observation):
    return Turn(text="", action=action, observation=observation)


@pytest.mark.parametrize(
    ("env", "before", "action", "after", "refused"),
    [
        ("sciworld", "", "eat moon", "No known action matches that input.", True),
        ("sciworld", "", "look", "A room.", False),
        ("intercode_sql", "", "SELECT", "Error executing query: You have an error", True),
        ("intercode_sql", "", "SELECT 1", "[(1,)]", False),
        ("webshop", "page [SEP] Red", "click[red]", "page [SEP] Red", False),
        ("webshop", "page [SEP] Red", "click[buy now]", "page [SEP] Red", True),
        ("webshop", "page [SEP] Red", "click[buy now]", "Thank you", False),
        ("webshop", "page", "hello", "page", True),
        ("elsewhere", "same", "anything", "same", False),
    ],
)
def test_refused_actions(env, before, action, after, refused):
    assert is_refused(env, before, turn(action, after)) is refused


def test_a_turn_without_an_action_is_invalid_anywhere():
    broken = episode("a", 0.0, env="elsewhere").model_copy(update={"turns": (turn(None, "?"), turn("go", "?"))})
    assert analysis.refusals(broken) == [True, False]


def test_a_page_is_compared_with_the_one_before():
    shopping = episode("a", 0.0, env="webshop").model_copy(
        update={"turns": tuple(turn(action, "page two") for action in ("search[tea]", "click[buy now]"))}
    )
    assert analysis.refusals(shopping) == [False, True]


def test_entropy_of_known_distributions():
    assert analysis.entropy([5]) == 0.0
    assert analysis.entropy([3, 3, 3, 3]) == 2.0
    assert analysis.entropy([2, 1, 1, 0]) == 1.5


@given(WORDS, WORDS, WORDS)
def test_edit_distance_is_a_distance(one, other, third):
    def distance(left, right):
        return analysis.edit_distance(left, right) * max(len(left), len(right), 1)

    assert distance(one, one) == 0
    assert distance(one, other) == distance(other, one)
    assert abs(len(one) - len(other)) <= distance(one, other) <= max(len(one), len(other))
    assert distance(one, third) <= distance(one, other) + distance(other, third)


def test_edit_distance_by_hand():
    assert analysis.edit_distance("kitten", "sitting") == 3 / 7
    assert analysis.edit_distance([], []) == 0.0


def test_drift_weighs_steps_by_their_pairs():
    def step(chosen, pairs, kind="expert_target"):
        return {f"{kind}/pairs": pairs, f"{kind}/chosen": chosen, f"{kind}/rejected": 2 * chosen, "loss": 1.0}

    history = [
        step(-1.0, 1),
        step(-4.0, 2),
        step(-9.0, 1),
        step(-9.0, 1),
        step(-2.0, 3),
        step(-6.0, 1, "failure_failure"),
    ]
    names = {"method": "eto", "env": "sciworld", "seed": 0, "iteration": 1, "agent": "target"}
    (found,) = analysis.drift(names, history, 3)
    assert (found.kind, found.chosen_first, found.rejected_first) == ("expert_target", -3.0, -6.0)
    assert (found.chosen_last, found.rejected_last) == (-2.0, -4.0)
    assert analysis.drift(names, [], 3) == []


def test_compute_adds_up():
    work = [
        analysis.Work(stage="train", seconds=3600, gpus=8, trained=5),
        analysis.Work(stage="rollout", seconds=1800, sampled=7),
    ]
    found = analysis.compute("eto", work)
    assert (found.jobs, found.hours, found.gpu_hours) == (2, 1.5, 8.0)
    assert (found.trained_tokens, found.sampled_tokens) == (5, 7)


def test_printed_numbers_are_means_over_seeds():
    found = [analysis.shares(explored("eto", {"a": r, "b": 0.0}, seed=s), 0.6) for s, r in enumerate((1.0, 0.0))]
    text = analysis.markdown(found, [], [], [])
    assert "| eto      | sciworld |         0.6 |          2 |      0.25 |" in text and "None." in text


def test_pair_counts_are_flat_objects():
    summary = {"kinds": {"expert_target": {"candidates": 3, "pairs": 2, "drops": {"tie": 1}}}, "empty": []}
    (row,) = pair_counts.rows({("eto", "tiny", "sciworld", 0, 1, "target"): summary})
    assert row["kind"] == "expert_target" and row["iteration"] == 1 and row["drops"] == {"tie": 1}


def sides(ours, iteration=2, seed=0):
    eto = {"a": 0.2, "b": 0.9, "c": 0.5, "d": 0.5, "e": 0.1}
    return [
        explored("eto", eto, iteration=iteration, seed=seed),
        explored("coevolve", ours, iteration=iteration, seed=seed, agent="failure"),
    ]


def test_examples_follow_the_rule():
    found = sides({"a": 0.7, "b": 0.1, "c": 0.5, "d": 1.0, "e": 0.6})
    found += sides({"a": 0.9}, iteration=1) + sides({"a": 0.9}, seed=1)
    found += [explored("eto", {"a": 0.0}, iteration=3)]
    chosen = examples.examples(found, "sciworld", 2)
    assert [(e.eto.task.task_id, pytest.approx(e.gap), e.iteration, e.seed) for e in chosen] == [
        ("b", -0.8, 2, 0),
        ("a", 0.5, 2, 0),
    ]
    assert [e.eto.task.task_id for e in examples.examples(found, "sciworld", 9)] == ["b", "a", "e"]
    assert examples.examples(found, "webshop", 2) == []


def test_examples_are_shown_side_by_side_and_escaped():
    eto = episode("a", 0.2, ("look | <b>", "go"))
    example = examples.Example("sciworld", 2, 0, eto, episode("a", 0.7, ("x" * 500,), agent="failure"))
    text = examples.markdown([example], {"sciworld": "ScienceWorld"})
    assert examples.RULE in text and "## ScienceWorld, a" in text and "> Do a" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert r"**look \| \<b\>**" in rows[1] and "ETO: reward 0.20, 2 turns" in rows[0] and "..." in rows[1]
    assert rows[2].endswith("|  |")
    assert "No instruction was failed by both" in examples.markdown([], {})


def experts(env):
    return [episode("a", 1.0, env=env), episode("a", 1.0, ("another", "way"), env=env)]


def test_the_files_of_a_suite(root, tmp_path):
    plan = Plan(load_suite(root / "configs/smoke.yaml", ["methods=[eto, coevolve]"]), root=str(tmp_path / "results"))
    for method in plan.suite.methods:
        for model, env, seed, iteration in plan.evaluations(method):
            jsonl.write(tmp_path / "results/smoke/data" / env / "experts.jsonl", experts(env))
            for agent, path in plan.rollouts(model, env, method, seed, iteration).items() if iteration else ():
                rewards = {"a": 0.1 if agent == "target" else 0.7, "b": 0.2}
                jsonl.write(tmp_path / path, explored(method, rewards, agent=agent, env=env).episodes)
    for key, path in plan.summaries(plan.suite.methods).items():
        summary = {"kinds": {"expert_target": {"candidates": 1, "pairs": 1, "drops": {}}}, "empty": []}
        files.write_bytes(tmp_path / path, json.dumps(summary).encode())
        notes = {"tokens": 9, "history": [{f"expert_target/{name}": -1.0 for name in ("pairs", "chosen", "rejected")}]}
        folder = plan.folder(
            "train", {"model": key[1], "env": key[2], "branch": f"{key[0]}/seed0/iter{key[4]}", "agent": key[5]}
        )
        files.write_bytes(tmp_path / folder / "provenance.json", json.dumps({"notes": notes, "seconds": 36.0}).encode())
    machine = load_machine(root / "configs/machines/cpu.yaml")
    out = tmp_path / "out"
    methods = plan.suite.methods
    of_methods = list(explorations(plan, methods))
    notes = stage.write(plan, paper.load(root / "configs/claims.yaml"), machine, methods, of_methods, out)
    assert notes["examples"] == 3
    assert {path.name for path in out.iterdir()} == {
        "figure2.json", "figure2.png", "figure2.svg", "analysis.json", "analysis.md", "pairs.json", "examples.md",
    }  # fmt: skip
    found = json.loads((out / "analysis.json").read_text())
    assert {row["threshold"] for row in found["shares"]} == {0.6, 0.7, 0.8}
    assert found["drift"] and found["diversity"] and len(json.loads((out / "pairs.json").read_text())) > 3
    eto = next(row for row in found["compute"] if row["method"] == "eto")
    assert {row["distance"] for row in found["diversity"]} == {0.0}
    assert eto["hours"] == pytest.approx(0.01 * eto["jobs"])
    assert eto["trained_tokens"] == 9 * eto["jobs"] > 0
