import re
from collections import Counter

import pytest

from coevolve import config
from coevolve.plan import STAGES, Branch, Plan
from coevolve.provenance import code_digest, reachable


@pytest.fixture
def plan(root):
    return Plan(config.load(root / "configs/smoke.yaml", ["iterations.sciworld=3", "seeds=[0,1]"]))


def test_nothing_is_computed_twice_and_the_base_is_shared(plan):
    jobs = [(stage, tuple(sorted(wildcards.items()))) for stage, wildcards in plan.jobs()]
    assert max(Counter(jobs).values()) == 1
    counts = Counter(stage for stage, _ in jobs)
    assert counts["data"] == counts["untrained"] == counts["pretrain"] == 1
    assert counts["sft"] == 4, "two agents, two seeds"
    # Per seed: the base's rollouts of both agents, and per later iteration 2 (co-evolving) + 1 (ETO).
    assert counts["rollout"] == 2 * (2 + 2 * 3)
    assert counts["pairs"] == 2 * 3 * (2 + 1)
    # The failure agent of the last iteration would be trained for nobody.
    assert counts["train"] == counts["pairs"] - 2
    assert counts["evaluate"] == 1 + 2 * (1 + 3 + 3)


def test_every_output_has_one_maker(plan):
    for stage, wildcards in plan.jobs():
        folder = STAGES[stage].folder.format_map(wildcards)
        for name in (*STAGES[stage].files, "provenance.json"):
            assert plan.maker(f"{plan.home}/{folder}/{name}") == (stage, wildcards)


def test_iteration_one_explores_with_the_base_and_later_ones_with_what_was_trained(plan):
    first = plan.rollouts("tiny", "sciworld", "coevolve", 1, 1)
    assert first["target"].endswith("base/seed1/rollout/target/episodes.jsonl")
    assert first["failure"].endswith("base/seed1/rollout/failure/episodes.jsonl")
    second = plan.rollouts("tiny", "sciworld", "coevolve", 1, 2)
    assert second["failure"].endswith("coevolve/seed1/iter2/rollout/failure/episodes.jsonl")
    explorer = plan.inputs(
        "rollout", {"model": "tiny", "env": "sciworld", "branch": "coevolve/seed1/iter2", "agent": "failure"}
    )
    assert str(explorer["policy"]).endswith("coevolve/seed1/iter1/policy/failure/policy.json")


def test_a_frozen_agent_keeps_its_base_policy(plan):
    policy = plan.policy("tiny", "sciworld", "frozen_failure_agent", 0, 2, "failure")
    assert policy.endswith("base/seed0/policy/failure/policy.json")


@pytest.mark.parametrize("reference", ["previous", "base"])
def test_the_reference_is_the_policy_the_iteration_starts_from_or_the_base(root, reference):
    suite = config.load(root / "configs/smoke.yaml", [f"dpo.reference={reference}"])
    wildcards = {"model": "tiny", "env": "sciworld", "branch": "eto/seed0/iter2", "agent": "target"}
    inputs = Plan(suite).inputs("train", wildcards)
    assert (inputs["reference"] == inputs["start"]) == (reference == "previous")


@pytest.mark.parametrize("text", ["base/seed3", "coevolve/seed0/iter12", "base/untrained", "base/pretrained"])
def test_branches_are_read_as_they_are_written(text):
    assert str(Branch.parse(text)) == text


def test_stages_read_only_sections_that_exist_and_every_section_is_read(plan):
    read = {section for stage in STAGES.values() for section in stage.reads}
    assert read <= set(config.Suite.model_fields)
    assert set(config.Suite.model_fields) - read == set(), "a config section that no stage reads"


def test_a_setting_changes_the_fingerprint_of_the_stages_that_read_it_only(root, plan):
    other = Plan(config.load(root / "configs/smoke.yaml", ["dpo.nll=sum", "iterations.sciworld=3", "seeds=[0,1]"]))
    changed = {
        stage
        for stage, wildcards in plan.jobs()
        if plan.fingerprint(stage, wildcards) != other.fingerprint(stage, wildcards)
    }
    assert changed == {"train"}


@pytest.mark.parametrize(
    "override",
    ["iterations.sciworld=4", "envs.sciworld.label=Other", "recipes.coevolve.label=Other", "models.tiny.label=Other"],
)
def test_one_more_iteration_or_another_label_reruns_nothing_but_the_report(root, plan, override):
    other = Plan(config.load(root / "configs/smoke.yaml", ["iterations.sciworld=3", "seeds=[0,1]", override]))
    changed = {
        stage for stage, names in plan.jobs() if plan.fingerprint(stage, names) != other.fingerprint(stage, names)
    }
    assert changed == {"report"}


def test_code_reached_by_a_stage_is_in_its_digest():
    assert "coevolve.train.objective" in reachable("coevolve.stages.train")
    assert "coevolve.train.objective" not in reachable("coevolve.stages.rollout")
    assert not any(re.search(r"stages\.|train", name) for name in reachable("coevolve.pairing"))
    assert code_digest("coevolve.stages.pairs") != code_digest("coevolve.stages.rollout")
