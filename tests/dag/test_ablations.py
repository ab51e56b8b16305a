"""Each question of the paper and its reviewers, as jobs."""

from pathlib import Path

import pytest
import yaml

from coevolve.config.loading import load_suite
from coevolve.errors import UserError
from coevolve.pipeline.branch import Branch
from coevolve.pipeline.job import Job
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stage import Subject
from coevolve.pipeline.stages import train
from coevolve.pipeline.suite_files import paths_of
from coevolve.pipeline.targets import targets
from coevolve.train.dataset import slot_order


@pytest.fixture(scope="module")
def plan(root):
    return Plan(load_suite(root / "configs/suites/paper.yaml", ["seeds=[0,1]"]))


MODEL, ENV = "llama2-7b-chat", "webshop"


def iteration(plan, method, number):
    """An iteration of a method for seed 0."""
    return plan.paper.iteration(Subject(MODEL, ENV, Branch(method, 0, number)))


#: Questions about a method of environments that the paper's suite lacks.
OTHER_SUITES = {"agent_data": "smoke_agent_data"}
#: Trainings of a table's rows, where they are not those on pairs.
TRAININGS = {"agent_data": {"grpo_round", "signals", "validate_tasks"}, "sft_nll": {"sft", "rft_train"}}


def test_every_ablation_is_a_target_whose_files_have_makers(root, plan):
    plans = {"": plan} | {prefix: Plan(load_suite(suite)) for prefix, suite in OTHER_SUITES.items()}
    named = {prefix: {target.name: target for target in targets(each)} for prefix, each in plans.items()}
    for name in plan.suite.ablations:
        prefix = next((prefix for prefix in OTHER_SUITES if name.startswith(prefix)), "")
        jobs = plans[prefix].jobs(named[prefix][f"ablation_{name}"].files())
        made = TRAININGS.get(prefix or name, {"pairs", "train"})
        assert {*made, "ablation"} <= {job.stage.name for job in jobs}, name


def test_every_row_belongs_to_a_question_and_to_no_suites_main_table(root, plan):
    rows = yaml.safe_load((root / "configs/parts/ablations.yaml").read_text())["recipes"]
    asked = {method for ablation in plan.suite.ablations.values() for method in ablation.methods}
    assert set(rows) <= asked
    assert not set(rows) & set(plan.suite.methods)


def test_asking_for_another_number_of_iterations_computes_none_twice(plan):
    named = {target.name: target for target in targets(plan)}
    branches = {job.wildcards.get("branch", "") for job in plan.jobs(named["ablation_iterations"].files())}
    assert not any(branch.startswith("iterations_") for branch in branches)
    assert {branch for branch in branches if branch.startswith("coevolve/seed0")} == {
        f"coevolve/seed0/iter{number}" for number in (1, 2, 3, 4, 5)
    }


def test_a_second_copy_of_the_target_has_rollouts_of_its_own(plan):
    twice = iteration(plan, "same_target_twice", 1).rollouts
    assert twice["target"].key != twice["failure"].key
    assert twice["failure"]["episodes.jsonl"].endswith("same_target_twice/seed0/iter1/rollout/failure/episodes.jsonl")
    wildcards = {"model": MODEL, "env": ENV, "branch": "same_target_twice/seed0/iter1", "agent": "failure"}
    assert str(plan.require("rollout", wildcards).inputs["policy"]).endswith("base/seed0/policy/target/policy.json")


def test_the_compute_matched_control_plays_as_much_as_both_agents(plan):
    wildcards = {"model": MODEL, "env": ENV, "branch": "eto_matched/seed0/iter2", "agent": "target"}
    assert plan.settings(plan.require("rollout", wildcards)).rollout.k == 2 * plan.suite.rollout.k


@pytest.mark.parametrize(
    ("batch", "epochs", "target", "failure", "own", "steps"),
    [
        (16, 3.0, 109, 31, 17, 3 * 7 + 3 * 2),
        (16, 0.5, 109, 31, 17, 4 + 1),  # half an epoch is rounded up
        (1, 1.0, 20, 9, 7, 29),  # 29 / 7 * 7 > 29 in floating point
        (16, 3.0, 0, 31, 17, 6),
        (16, 3.0, 0, 0, 17, 6),  # nothing to match: its own three epochs
    ],
)
def test_a_compute_matched_control_takes_the_steps_of_both_agents(
    plan, tmp_path, batch, epochs, target, failure, own, steps
):
    paths = [tmp_path / name for name in ("target", "failure", "own")]
    for path, pairs in zip(paths, (target, failure, own), strict=True):
        path.write_text("{}\n" * pairs)
    wildcards = {"model": MODEL, "env": ENV, "branch": "eto_matched/seed0/iter2", "agent": "target"}
    suite = plan.settings(plan.require("train", wildcards))
    suite = suite.model_copy(update={"dpo": suite.dpo.model_copy(update={"batch_size": batch, "epochs": epochs})})
    job = Job("train", suite, {"pairs": paths[2:], "steps_like": paths[:2]}, wildcards, tmp_path, 1)
    order = slot_order(own, batch, train._compute_matched(job).epochs, seed=0)
    assert len(order) == steps * batch


def test_the_noise_floor_shares_the_base_and_nothing_it_trains(plan):
    first, again = (iteration(plan, method, 1).rollouts for method in ("eto", "eto_again"))
    assert first == again
    jobs = {
        job.stage.name
        for job in plan.jobs(paths_of(plan.records(["eto_again"], every_model=True)))
        if job.wildcards.get("branch", "").startswith("eto_again/")
    }
    assert jobs == {"pairs", "reference", "train", "rollout", "evaluate"}
    names = [
        {"model": MODEL, "env": ENV, "agent": "target", "branch": f"{m}/seed0/iter1"} for m in ("eto", "eto_again")
    ]
    pairs = [plan.require("pairs", each) for each in names]
    assert pairs[0].inputs == pairs[1].inputs
    trainings = [plan.require("train", each) for each in names]
    jobs = [Job("train", plan.settings(job), {}, job.wildcards, Path(), 1, branch=job.branch) for job in trainings]
    seeds = {job.seed for job in jobs}
    assert len(seeds) == 2, "the order of the pairs in a training differs"


@pytest.mark.parametrize("iteration", [1, 3])
def test_a_failure_agent_trained_first_plays_for_the_target_after_its_training(plan, iteration):
    names = {"model": MODEL, "env": ENV, "branch": f"failure_agent_first/seed0/iter{iteration}"}

    def player(agent):
        """The policy that played the failure agent's episodes in the pairs of an agent."""
        path = plan.require("pairs", {**names, "agent": agent}).inputs["failure"]
        return plan.job(path).inputs["policy"].removesuffix("/policy.json").split("/webshop/")[1]

    trained = f"failure_agent_first/seed0/iter{iteration}/policy/failure"
    before = (
        f"failure_agent_first/seed0/iter{iteration - 1}/policy/failure"
        if iteration > 1
        else "base/seed0/policy/failure"
    )
    assert (player("target"), player("failure")) == (trained, before)
    training = plan.require("train", {**names, "agent": "target"})
    scored = plan.job(training.inputs["scores"]).inputs
    assert scored["failure"] == plan.require("pairs", {**names, "agent": "target"}).inputs["failure"]
    made = plan.paper.iteration(Subject(MODEL, ENV, Branch("failure_agent_first", 0, iteration)))
    assert made.policies["target"] is training
    assert training in plan.jobs(training.files)


def test_what_a_suite_has_no_environment_for_cannot_be_asked_for(root):
    everywhere = {target.name for target in targets(Plan(load_suite(root / "configs/suites/smoke.yaml")))}
    assert "webshop_coevolve" in everywhere
    assert not any("foreign" in name for name in everywhere), "tiny models have a tokenizer each"
    plan = Plan(load_suite(root / "configs/suites/studies/micro.yaml"))
    named = {target.name for target in targets(plan)}
    assert "ablation_positive_agent" in named
    assert not any("foreign" in name for name in named)
    with pytest.raises(UserError, match="`foreign_failure_agent` needs an environment"):
        load_suite(root / "configs/suites/studies/micro.yaml", ["methods=[sft, foreign_failure_agent]"])


def test_a_foreign_failure_agent_is_the_one_last_trained_elsewhere(plan):
    cells = [Subject(MODEL, "webshop", Branch("foreign_failure_agent", 1, number)) for number in (0, 1)]
    start, first = map(plan.paper.iteration, cells)
    policy = start.policies["failure"]["policy.json"]
    assert policy.endswith("sciworld/coevolve/seed1/iter2/policy/failure/policy.json")
    explored = first.rollouts["failure"]["episodes.jsonl"]
    assert "foreign_failure_agent" in explored


@pytest.mark.parametrize("method", ["lambda_0", "lambda_25", "lambda_75", "lambda_100"])
def test_the_grid_weighs_expert_pairs_and_leaves_failure_pairs(plan, method):
    weights = plan.suite.recipes[method].agents["target"].trains_on
    share = int(method.removeprefix("lambda_")) / 100
    assert (weights["expert_target"].sft, weights["expert_failure"].dpo) == (share, 1 - share)
    assert weights["failure_failure"] == plan.suite.recipes["coevolve"].agents["target"].trains_on["failure_failure"]
