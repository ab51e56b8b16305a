"""Settings of one agent alone: another objective, rate or number of rollouts of the failure agent."""

from coevolve.config.loading import load_suite
from coevolve.pipeline.plan import Plan

FAILURE = "recipes.coevolve.agents.failure.settings"
SIMPO = "{objective: {name: simpo, margin: 0.3}, learning_rate: [7.0e-4]}"
PLACE = {"model": "tiny", "env": "webshop"}


def plan(*settings):
    return Plan(load_suite("smoke", [f"{FAILURE}.{setting}" for setting in settings]))


def train(plan, agent, iteration=1):
    return plan.require("train", PLACE | {"branch": f"coevolve/seed0/iter{iteration}", "agent": agent})


def test_an_objective_and_a_rate_are_those_of_the_failure_agent_alone():
    before, after = plan(), plan(f"dpo={SIMPO}")
    failure, target = train(after, "failure"), train(after, "target")
    dpo = after.settings(failure).dpo
    assert (dpo.objective.name, dpo.learning_rate) == ("simpo", [0.0007])
    assert dpo.epochs == after.suite.dpo.epochs, "the other keys are the suite's"
    assert after.settings(target).dpo == after.suite.dpo != dpo
    assert "scores" in train(before, "failure").inputs and not {"scores", "reference"} & failure.inputs.keys()


def test_settings_of_one_agent_leave_the_jobs_of_the_other_as_they_are():
    before, after = plan(), plan("pairing={hard_negative: 0.5}", f"dpo={SIMPO}")
    others = {job.key: job for job in after.jobs()}
    jobs = [job for job in before.jobs() if job.key in others]
    changed = [job for job in jobs if before.fingerprint(job) != after.fingerprint(others[job.key])]
    assert {(job.stage.name, job.wildcards["agent"]) for job in changed if job.branch is not None} == {
        ("pairs", "failure"), ("train", "failure"),
    }  # fmt: skip


def test_an_agent_that_explores_more_often_shares_no_rollout_of_the_base():
    after = plan("rollout={k: 3}")
    branch = PLACE | {"branch": "coevolve/seed0/iter1", "agent": "target"}
    inputs = after.require("pairs", branch).inputs
    assert inputs["failure"].endswith("coevolve/seed0/iter1/rollout/failure/episodes.jsonl")
    assert inputs["target"].endswith("base/seed0/rollout/target/episodes.jsonl")
    assert after.settings(after.require("rollout", branch | {"agent": "failure"})).rollout.k == 3
    before = plan()
    kept = [each.workload(each.require("pairs", branch)).kept for each in (after, before)]
    assert kept[0] > kept[1]
