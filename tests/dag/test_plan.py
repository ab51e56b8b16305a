from collections import Counter
from pathlib import Path

import pytest
from report.explored import provenance

from coevolve.config.loading import load_suite
from coevolve.config.machine import Shards
from coevolve.config.suite import FOLDERS, Suite, supports
from coevolve.pipeline.branch import Branch
from coevolve.pipeline.job_file import JobFile
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.registry import ENDS, STAGES
from coevolve.pipeline.stage import MIRROR, Subject
from coevolve.results.tables import of_job

LARGER = ["iterations.sciworld=3", "iterations.intercode_sql=3", "iterations.webshop=3", "seeds=[0,1]"]
ENVS = 3


@pytest.fixture
def plan():
    return Plan(load_suite("smoke", LARGER))


def test_nothing_is_computed_twice_and_the_base_is_shared(plan):
    jobs = [(job.stage.name, tuple(sorted(job.wildcards.items()))) for job in plan.jobs()]
    assert max(Counter(jobs).values()) == 1
    assert max(Counter(job.key for job in plan.jobs()).values()) == 1
    counts = Counter(stage for stage, _ in jobs)
    assert counts["data"] == counts["untrained"] == counts["pretrain"] == ENVS
    assert counts["sft"] == ENVS * 4, "two agents, two seeds"
    # Per seed: the base's rollouts of both agents, and per later iteration 2 (co-evolving) + 1 (ETO).
    assert counts["rollout"] == ENVS * 2 * (2 + 2 * 3)
    assert counts["pairs"] == ENVS * 2 * 3 * (2 + 1)
    # The failure agent of the last iteration would be trained for nobody.
    assert counts["train"] == counts["pairs"] - ENVS * 2
    # Those of the first iteration, of both agents and of ETO's one, lie under the base.
    assert counts["reference"] == counts["train"]
    assert counts["evaluate"] == ENVS * (1 + 2 * (1 + 3 + 3))
    assert counts["download"] == 1, "the databases, once for all jobs"


def test_every_output_has_one_maker(plan):
    for job in plan.jobs():
        home = MIRROR if job.stage.name == "download" else plan.home
        names = job.stage.files or (job.wildcards["file"],)
        assert job.files == [f"{home}/{job.result}/{name}" for name in names]
        for path in job.outputs:
            assert plan.job(path) is job


def test_the_files_of_a_job_lie_where_its_wildcards_say(plan):
    for job in plan.jobs():
        on = job.wildcards
        if "branch" in on:
            assert job.result.startswith(f"{on['model']}/{on['env']}/{on['branch']}/")
            assert str(job.branch) == on["branch"]
        if "agent" in on:
            assert on["agent"] in job.result.split("/")


def test_no_model_has_the_name_of_another_results_folder(plan):
    made = [job for suite in ("smoke", "smoke_agent_data") for job in every_job(suite) if not job.stage.shared]
    assert {job.stage.name for job in made} == {name for name, stage in STAGES.items() if not stage.shared}
    folders = {
        *(plan.log(job).removeprefix(f"{plan.home}/") for job in plan.jobs()),
        *(job.result for job in made),
    }
    assert {folder.split("/")[0] for folder in folders} - {"tiny"} == set(FOLDERS)


def every_job(suite):
    """The jobs that a suite can have, those of a divided rollout too."""
    plan = Plan(load_suite(suite), shards=Shards(rollout=2, evaluate=2))
    assert plan.by_key("none") is None, "it looked at all jobs"
    return plan.paper.jobs.values()


def test_rows_that_differ_from_the_second_iteration_on_take_coevolves_first_training(plan):
    for row in ("frozen_failure_agent", "beta_10"):
        made = [plan.paper.iteration(Subject("tiny", "sciworld", Branch(row, 0, iteration))) for iteration in (1, 2)]
        assert [each.policies["target"].branch.method for each in made] == ["coevolve", row]
        wildcards = {"model": "tiny", "env": "sciworld", "branch": f"{row}/seed0/iter2", "agent": "failure"}
        explorer = str(plan.require("rollout", wildcards).inputs["policy"])
        trained = row == "beta_10"
        assert explorer.endswith(f"{'coevolve/seed0/iter1' if trained else 'base/seed0'}/policy/failure/policy.json")


@pytest.mark.parametrize(
    "text", ["base/seed3", "coevolve/seed0/iter12", "base/untrained", "base/pretrained", "pretrained/seed2"]
)
def test_branches_are_read_as_they_are_written(text):
    of = of_job(provenance("a result", wildcards={"branch": text}))
    assert str(Branch(of.method, of.seed, of.iteration)) == text


def test_stages_read_only_sections_that_exist_and_every_section_is_read(plan):
    read = {section for stage in STAGES.values() for section in stage.reads}
    assert read <= set(Suite.model_fields)
    assert set(Suite.model_fields) - read == set(), "a config section that no stage reads"


PRODUCTS = {*ENDS}


READ_A_MODEL = {"untrained", "pretrain", "sft", "reference", "train", "rollout", "evaluate"}


@pytest.mark.parametrize(
    ("override", "stages"),
    [
        ("dpo.nll=mean", {"train"}),
        ("sampler.dtype=bfloat16", {"rollout", "evaluate"}),
        ("sampler.dtype=null", set()),
        ("models.tiny.training_dtype=null", set()),
        ("models.tiny.training_dtype=bfloat16", READ_A_MODEL | {"..."}),
        ("models.tiny.label=Other", {"..."}),
        ("recipes.coevolve.label=Other", {"..."}),
        ("envs.sciworld.label=Other", {"..."}),
        ("iterations.sciworld=4", {"..."}),  # one more iteration
        ("pairing.drop_conflicts=true", {"pairs"}),
        ("pairing.drop_conflicts=false", set()),
        ("recipes.coevolve.learns=preference", set()),
        ("gradients.pairs=4", set()),
        ("envs.sciworld.workers=2", set()),
    ],
)
def test_a_setting_changes_the_fingerprint_of_the_stages_that_read_it_only(plan, override, stages):
    """Three dots stand for products."""
    assert {"..." if stage in PRODUCTS else stage for stage in changed(plan, override)} == stages


def changed(plan, override):
    """The stages whose jobs have another fingerprint after the override."""
    return {job.stage.name for job in differing(plan, Plan(load_suite("smoke", [*LARGER, override])))}


def differing(plan, other):
    """The jobs that have another fingerprint in another plan."""
    return [job for job in plan.jobs() if plan.fingerprint(job) != other.fingerprint(other.by_key(job.key))]


def test_measured_gradients_add_their_jobs_and_rerun_analysis_and_costs_alone(plan):
    """Every preference training of a method's own is measured, and no training is added for it."""
    other = Plan(load_suite("smoke", [*LARGER, "gradients.pairs=4"]))
    jobs, more = ([(job.stage.name, *job.wildcards.values()) for job in each.jobs()] for each in (plan, other))
    added = set(more) - set(jobs)
    assert set(jobs) < set(more) and {job[0] for job in added} == {"gradients"}
    assert {job[1:] for job in added} == {job[1:] for job in jobs if job[0] == "train"}
    changed = {job.stage.name for job in plan.jobs() if job.inputs != other.by_key(job.key).inputs}
    assert changed == {"failures", "costs"}


def test_the_measured_trainings_of_any_row_are_its_own(root):
    base = load_suite("smoke", ["gradients.pairs=4", "iterations.webshop=2"])
    suite = base.model_copy(update={"envs": {"webshop": base.envs["webshop"]}})
    for method in (method for method in suite.recipes if supports(suite, method)):
        jobs = list(Plan(suite.model_copy(update={"methods": [method]})).jobs())
        by_stage = {
            stage: {tuple(job.wildcards.values()) for job in jobs if job.stage.name == stage}
            for stage in ("train", "gradients")
        }
        own = {names for names in by_stage["train"] if names[2].startswith(f"{method}/")}
        assert by_stage["gradients"] == own, method


def test_each_seed_can_have_weights_and_a_pretraining_of_its_own(plan):
    own = Plan(load_suite("smoke", [*LARGER, "models.tiny.pretrain.per_seed=true"]))
    seeds = own.suite.seeds
    assert len(seeds) > 1
    for seed in seeds:
        wildcards = {"model": "tiny", "env": "sciworld", "branch": f"base/seed{seed}", "agent": "failure"}
        start = own.require("sft", wildcards).inputs["start"]
        assert start.endswith(f"pretrained/seed{seed}/policy/target/policy.json")
        of_seed = {"model": "tiny", "env": "sciworld", "branch": f"pretrained/seed{seed}"}
        before = own.require("pretrain", of_seed).inputs["start"]
        assert before.endswith(f"untrained/seed{seed}/policy/target/policy.json")
    branches = branches_of(own, "untrained", "pretrain")
    assert branches == {
        "base/untrained",
        *(f"{kind}/seed{seed}" for kind in ("untrained", "pretrained") for seed in seeds),
    }
    shared = branches_of(plan, "untrained", "pretrain")
    assert shared == {"base/untrained", "base/pretrained"}


def branches_of(plan, *stages):
    """The branches of the jobs of some stages."""
    return {job.wildcards["branch"] for job in plan.jobs() if job.stage.name in stages}


def test_a_file_from_outside_has_one_pin_for_the_download_and_for_its_reader(root):
    suite = load_suite("smoke")
    for env in suite.envs.values():
        for path in env.data_files.values():
            if path.startswith(MIRROR):
                assert path.split("/")[-2:] == [next(n for n in suite.sources if n in path), Path(path).name]
    assert suite.envs["intercode_sql"].dump.sha256 == suite.sources["spider"].sha256


def test_what_an_endpoint_says_does_not_depend_on_the_sampler(root):
    def fingerprints(*overrides):
        plan = Plan(load_suite(root / "configs/suites/in_context.yaml", overrides))
        evaluated = [job for job in plan.jobs() if job.stage.name == "evaluate"]
        return [plan.fingerprint(job) for job in evaluated if plan.suite.models[job.wildcards["model"]].endpoint]

    assert fingerprints() and fingerprints() == fingerprints("sampler.engine=vllm")


def test_the_file_of_a_job_changes_with_the_names_of_its_inputs(root):
    def planned(*overrides: str) -> dict[str, list[str]]:
        plan = Plan(load_suite("smoke", overrides))
        return JobFile.of(plan, plan.require("data", {"env": "sciworld"})).inputs

    assert planned() == planned() != planned("envs.sciworld.experts.path=elsewhere/gold.jsonl")


def test_a_model_of_the_hub_is_fetched_again_for_another_name_or_commit():
    pins = [{"hub": hub, "revision": commit * 40} for hub in ("org/a", "org/b") for commit in "01"]
    found = {STAGES["snapshot"].pin({"models": {"own": pin}}, {"model": "own"}) for pin in pins}
    assert len(found) == 4
