"""Settings of one agent alone: another objective, rate or number of rollouts of the failure agent."""

from coevolve.config.loading import load_suite
from coevolve.pipeline.plan import Plan

FAILURE = "recipes.coevolve.agents.failure.settings"
SIMPO = "{objective: {name: simpo, margin: 0.3}, learning_rate: [7.0e-4]}"
PLACE = {"model": "tiny", "env": "webshop"}


def plan(*settings):
    return Plan(load_suite("smoke", [f"{FAILURE}.{setting}" for setting in settings]))


def train(agent, iteration=1):
    return "train", PLACE | {"branch": f"coevolve/seed0/iter{iteration}", "agent": agent}


def test_an_objective_and_a_rate_are_those_of_the_failure_agent_alone():
    before, after = plan(), plan(f"dpo={SIMPO}")
    failure, target = train("failure"), train("target")
    dpo = after.restricted(*failure).dpo
    assert (dpo.objective.name, dpo.learning_rate) == ("simpo", [0.0007])
    assert dpo.epochs == after.suite.dpo.epochs, "the other keys are the suite's"
    assert after.restricted(*target).dpo == after.suite.dpo != dpo
    assert "scores" in before.inputs(*failure) and not {"scores", "reference"} & after.inputs(*failure).keys()


def test_settings_of_one_agent_leave_the_jobs_of_the_other_as_they_are():
    before, after = plan(), plan("pairing={hard_negative: 0.5}", f"dpo={SIMPO}")
    jobs = [job for job in before.jobs() if job in list(after.jobs())]
    products = {stage for stage, names in jobs if "branch" not in names}
    changed = [job for job in jobs if before.fingerprint(*job) != after.fingerprint(*job)]
    assert {(stage, names["agent"]) for stage, names in changed if stage not in products} == {
        ("pairs", "failure"), ("train", "failure"),
    }  # fmt: skip


def test_an_agent_that_explores_more_often_shares_no_rollout_of_the_base():
    after = plan("rollout={k: 3}")
    branch = PLACE | {"branch": "coevolve/seed0/iter1", "agent": "target"}
    inputs = after.inputs("pairs", branch)
    assert inputs["failure"].endswith("coevolve/seed0/iter1/rollout/failure/episodes.jsonl")
    assert inputs["target"].endswith("base/seed0/rollout/target/episodes.jsonl")
    assert after.restricted("rollout", branch | {"agent": "failure"}).rollout.k == 3
    assert after.workload("pairs", branch).kept > plan().workload("pairs", branch).kept
