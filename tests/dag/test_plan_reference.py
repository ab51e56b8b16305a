"""Reference log-probs in the plan: one job for all that can share it, none where no reference is asked."""

from collections import Counter
from itertools import combinations

import pytest

from coevolve.config.loading import load_suite
from coevolve.config.models import parameter_count
from coevolve.config.suite import Suite
from coevolve.pipeline.machine import load_machine
from coevolve.pipeline.plan import Plan
from coevolve.records.pairs import STEP_KINDS, PairKind
from coevolve.watch import estimates

SHARING = ["coevolve", "lambda_0", "lambda_25", "lambda_75", "lambda_100", "without_expert_target", "hard_60", "ipo"]
PLACE = {"model": "tiny", "env": "webshop"}


@pytest.fixture
def suite(root):
    """Of a method, its settings and the suite's: the smoke suite's WebShop for two iterations."""

    def load(*methods, overrides=()):
        more = [f"methods=[{', '.join(methods)}]", "iterations.webshop=2", *overrides]
        found = load_suite(root / "configs/suites/smoke.yaml", more)
        return found.model_copy(update={"envs": {"webshop": found.envs["webshop"]}})

    return load


def references(suite: Suite) -> Counter[tuple[str, str, str]]:
    """Jobs by branch, agent and what is scored."""
    jobs = [job.wildcards for job in Plan(suite).jobs() if job.stage.name == "reference"]
    return Counter((names["branch"], names["agent"], names["of"]) for names in jobs)


def test_iteration_one_of_all_methods_shares_one_job(suite):
    found = references(suite(*SHARING))
    assert max(found.values()) == 1
    first = {key for key in found if key[0].startswith("base/") or key[0].endswith("iter1")}
    assert first == {
        ("base/seed0", "target", "experts_target_failure"),
        ("base/seed0", "failure", "target_failure"),
    }
    later = {(f"{method}/seed0/iter2", "target", "experts_target_failure") for method in SHARING}
    assert found.keys() == first | later, "the failure agent of the last iteration is not trained"


@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("k_2", ()),
        ("coevolve_other_prompt", ()),
        ("coevolve", ["recipes.coevolve.agents.target.base=untrained"]),
    ],
)
def test_what_is_otherwise_is_scored_for_itself(suite, method, overrides):
    branches = {branch for branch, agent, _ in references(suite(method, overrides=overrides)) if agent == "target"}
    assert {f"{method}/seed0/iter1", f"{method}/seed0/iter2"} <= branches
    assert "base/seed0" not in branches


def test_the_method_with_another_example_leaves_it_out_of_what_is_scored(suite):
    """Quirk 11: the same rows as its pairs have, so that it needs no pass over the pairs themselves."""
    plan = Plan(suite("coevolve_other_prompt"))
    branch = {"branch": "coevolve_other_prompt/seed0/iter1", "agent": "target", "of": "experts_target_failure"}
    scored = plan.require("reference", PLACE | branch)
    branch.pop("of")
    assert scored.inputs["excluded_example"] == plan.require("pairs", PLACE | branch).inputs["excluded_example"]


def test_pairs_of_steps_are_scored_themselves(suite):
    plan = Plan(suite("ipr"))
    branch = {"branch": "ipr/seed0/iter2", "agent": "target"}
    assert references(plan.suite).keys() == {(f"ipr/seed0/iter{number}", "target", "pairs") for number in (1, 2)}
    inputs = plan.require("reference", PLACE | branch | {"of": "pairs"}).inputs
    assert inputs == {
        "pairs": plan.require("train", PLACE | branch).inputs["pairs"],
        "policy": "results/smoke/tiny/webshop/base/seed0/policy/target/policy.json",  # IPR's is the base
    }


@pytest.mark.parametrize(
    "overrides", [["dpo.precompute_reference=false"], ["dpo.objective={name: simpo, margin: 0.5}"]]
)
def test_no_such_job_where_training_does_without(suite, overrides):
    assert not references(suite("coevolve", "eto", overrides=overrides))
    branch = {"branch": "eto/seed0/iter1", "agent": "target"}
    inputs = Plan(suite("eto", overrides=overrides)).require("train", PLACE | branch).inputs
    assert "scores" not in inputs
    assert ("reference" in inputs) == ("precompute" in overrides[0])


def test_every_choice_of_pair_kinds_has_its_place(suite):
    """The wildcard `of` takes whatever a method's pair kinds come to."""
    sources = ("experts", "target", "failure")
    scored = {"_".join(some) for number in (1, 2, 3) for some in combinations(sources, number)}
    kinds = [kind for kind in PairKind if kind not in STEP_KINDS]
    for chosen in (1, 3, 4, 5, 7):
        own = {
            str(kind): None if not chosen >> place & 1 else {"dpo": 1.0, "sft": 0.0} for place, kind in enumerate(kinds)
        }
        changed = [f"recipes.coevolve.agents.target.trains_on={own}".replace("None", "null").replace("'", "")]
        found = references(suite("coevolve", overrides=changed))
        assert {of for _, agent, of in found if agent == "target"} <= scored
        assert sum(agent == "target" for _, agent, _ in found) == 2


def test_the_ablations_of_the_paper_share_what_they_can(root):
    """Jobs if every training had its own, and jobs as they are."""
    plan = Plan(load_suite(root / "configs/suites/paper.yaml"))
    tables = [
        f"{plan.home}/ablations/{name}/table.md" for name in ("lambda", "pair_kinds", "hard_negatives", "reference")
    ]
    jobs = [job for job in plan.jobs(tables) if job.wildcards.get("env") == "webshop"]
    trained = [job.wildcards for job in jobs if job.stage.name == "train"]
    scored = [job.wildcards for job in jobs if job.stage.name == "reference"]
    first = [names for names in trained if names["branch"].endswith("iter1")]
    assert (len(first), sum(names["branch"].startswith("base/") for names in scored)) == (24, 2)
    assert len(trained) - len(scored) == 24 - 2


def test_scoring_costs_one_pass_and_training_none_of_it(root, suite):
    machine = load_machine(root / "configs/machines/cpu.yaml")
    before, on_the_fly = suite("coevolve"), suite("coevolve", overrides=["dpo.precompute_reference=false"])
    branch = PLACE | {"branch": "coevolve/seed0/iter2", "agent": "target"}
    plans = [Plan(one) for one in (before, on_the_fly)]
    jobs = [(plan, plan.require("train", branch)) for plan in plans]
    train, with_reference = (estimates.cost(plan, machine, job) for plan, job in jobs)
    assert train.seconds < with_reference.seconds
    failures = before.envs["webshop"].expected.failures
    # Of 32 tasks those on which somebody fails, with all that was done there.
    rows = {"experts_target": 2 * 32 * failures, "experts_target_failure": 3 * 32 * (1 - (1 - failures) ** 2)}
    for of, number in rows.items():
        plan = plans[0] if of == "experts_target_failure" else Plan(suite("eto"))
        named = branch | {"of": of} | ({} if plan is plans[0] else {"branch": "eto/seed0/iter2"})
        scored = estimates.cost(plan, machine, plan.require("reference", named))
        scoring = scored.seconds - machine.costs.startup_seconds
        tokens = number * before.envs["webshop"].expected.tokens
        weights = parameter_count(before.models["tiny"])
        assert scoring == pytest.approx(2 * weights * tokens / (machine.costs.flops * machine.costs.training))
