"""No row without its method: the stages that make a row what it is called are in the plan of every suite."""

from itertools import product
from pathlib import Path

import pytest

from coevolve.config.loading import load_suite
from coevolve.config.suite import for_method, iterations_of, with_model
from coevolve.errors import UserError
from coevolve.methods.recipes import POOL_LEARNING
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.suite_files import SuiteFiles, paths_of
from coevolve.records.evaluation import ResultFile

CONFIGS = Path(__file__).parents[2] / "configs"
SUITES = (
    "smoke", "smoke_methods", "smoke_agent_data", "micro", "micro_methods", "micro_agent_data", "micro_bfcl",
    "science", "science_methods", "real_agent_data", "agent_data", "paper", "reviewer", "base_models",
    "real", "real_seeds", "real_sql", "real_tuned",
)  # fmt: skip
#: Suites in which no failure agent is trained.
TARGET_ALONE = ("smoke_agent_data", "real_agent_data", "agent_data")
#: The stages that run on a method's own branch, by how it learns.
LEARNS = {
    "preference": ["pairs", "train"],
    "failure_agent_first": ["pairs", "train"],
    "steps": ["steps", "train"],
    "selected": ["select", "rft_train"],
    "ppo": ["ppo"],
    "grpo": ["grpo"],
    "task_pool": ["grpo_round"],
    "pool_preference": ["pool_experts", "rollout", "pairs", "train"],
}


#: Stages whose jobs belong to no agent.
SHARED = ("pool_experts", "signals", "explore_tasks", "validate_tasks")

#: The stages of a row that makes tasks, by where it explores after the first round.
EXPLORES = {
    "signals": ["signals", "explore_tasks", "validate_tasks"],
    "random": ["explore_tasks", "validate_tasks"],
    "none": [],
}


def stages_of(suite, method):
    """The stages that make the row what it is called."""
    learns = suite.recipes[method].learns
    exploration = for_method(suite, method).task_evolution.exploration
    return LEARNS[learns] + (EXPLORES[exploration] if learns in POOL_LEARNING else [])


def jobs_of(plan, method):
    """(stage, environment, agent, iteration) of every job on the method's own branches."""
    targets = paths_of(plan.records([method], every_model=True))
    return {
        (job.stage.name, job.wildcards["env"], job.wildcards.get("agent", "target"), job.branch.iteration)
        for job in plan.jobs(targets)
        if job.branch and job.branch.method == method
    }


@pytest.mark.parametrize("name", SUITES)
def test_the_stages_that_make_a_row_are_in_the_plan_and_a_trained_failure_agent_explores(name):
    """With one iteration co-evolving would be `frozen_failure_agent` under another name."""
    suite = load_suite(name)
    plan, trained = Plan(with_model(suite)), []
    for method in suite.methods:
        recipe, jobs = suite.recipes[method], jobs_of(plan, method)
        for env, (agent, spec) in product(suite.envs, recipe.agents.items()):
            learns = bool(spec.trains_on) or (recipe.learns != "preference" and agent == "target")
            for stage in stages_of(suite, method) if learns and iterations_of(suite, env, method) else ():
                of_agent = "target" if stage in SHARED else agent
                made = [job for job in jobs if job[:3] == (stage, env, of_agent)]
                assert made, f"{name}: {method} on {env} never runs `{stage}` for its {agent} agent"
            if agent == "failure" and spec.trains_on:
                trained.append(method)
                explored = {job[3] for job in jobs if job[:3] == ("rollout", env, "failure")}
                assert max(explored, default=0) >= 2, f"{method}'s failure agent on {env} never explores trained"
    assert bool(trained) == (name not in TARGET_ALONE)


def test_a_full_run_of_smoke_methods_has_the_rows_and_products_of_paper():
    def made(suite):
        """The rows that are judged, the products and tables, and the stages that make them."""
        plan = Plan(load_suite(suite))
        rows = {file.method for file in plan.products["verdicts"].inputs["records"]}
        products = {path.removeprefix(plan.home) for path in plan.targets()}
        return rows, products, {job.stage.name for job in plan.jobs()}

    (rows, products, stages), (small_rows, small_products, small_stages) = made("paper"), made("smoke_methods")
    assert rows == {"sft", "ppo", "rft", "eto", "coevolve", "positive_agent"} and rows <= small_rows
    assert "/ablations/positive_agent/table.md" in products and products == small_products
    assert stages - small_stages == {"download", "snapshot"}, "what comes from outside"


def test_a_row_with_a_model_of_its_own_is_run_with_that_model_alone():
    plan = Plan(load_suite("in_context"))
    records = plan.products["table1"].inputs["records"]
    assert {(file.method, file.model) for file in records if file.model != "llama2-7b-chat"} == {
        ("gpt4", "gpt4"), ("gpt35", "gpt35")
    }  # fmt: skip
    assert {file.model for file in records if file.method not in ("gpt4", "gpt35")} == {"llama2-7b-chat"}
    evaluated = [job for job in plan.jobs() if job.stage.name == "evaluate"]
    assert {job.wildcards["model"] for job in evaluated} == {*plan.suite.models}
    assert plan.home == Plan(load_suite("paper")).home, "no training is repeated"
    with pytest.raises(UserError, match="`gpt4` needs an environment, method or model"):
        load_suite("paper", ["methods=[sft, gpt4]"])


def test_whether_tasks_can_be_learnt_is_read_from_the_first_iteration_of_its_row():
    files = SuiteFiles(load_suite("smoke_methods", ["recipes.grpo.iterations=2"]))
    folder = "results/smoke_methods/tiny/webshop/grpo/seed0/iter1/policy/target"
    assert files.practice() == [ResultFile(f"{folder}/episodes.jsonl", "webshop", "grpo", "tiny", 0, 1)]
