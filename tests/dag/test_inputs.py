"""The files that each job of iteration 2 reads, typed from section 4 of the paper and from the baselines' papers.

Iteration 2, because the policies of the first are the base policies; an exploration with tasks of its own, because
otherwise the experts of SFT are those of the explored tasks.
"""

from itertools import product

import pytest

from coevolve.config.loading import load_suite
from coevolve.errors import UserError
from coevolve.methods.pairing import KIND_AGENTS
from coevolve.pipeline.branch import Branch
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stage import Subject
from coevolve.pipeline.suite_files import paths_of
from coevolve.records.pairs import PairKind

HOME = "results/smoke_methods"
WEBSHOP = {"model": "tiny", "env": "webshop"}
DATA, TINY = f"{HOME}/data/webshop", f"{HOME}/tiny/webshop"
PLAYED = {"instruction": f"{DATA}/instruction.txt", "prepared": f"{HOME}/prepared/webshop/meta.json"}
EXPLORED = PLAYED | {"tasks": f"{DATA}/explore.jsonl"}
START = f"{TINY}/base/pretrained/policy/target/policy.json"


@pytest.fixture(scope="module")
def plan(root):
    return Plan(load_suite(root / "configs/suites/smoke_methods.yaml", ["seeds=[3]", "iterations.webshop=3"]))


def policy(branch, agent="target"):
    return f"{TINY}/{branch}/policy/{agent}/policy.json"


def episodes(branch, agent="target"):
    return f"{TINY}/{branch}/rollout/{agent}/episodes.jsonl"


JOBS = {
    # Section 4.1: both agents from the same policy and experts.
    ("sft", "base/seed3", "target"): {"experts": f"{DATA}/sft.jsonl", "start": START},
    ("sft", "base/seed3", "failure"): {"experts": f"{DATA}/sft.jsonl", "start": START},
    # Section 4.2: each agent explores with what it has learnt so far.
    ("rollout", "base/seed3", "failure"): EXPLORED | {"policy": policy("base/seed3", "failure")},
    ("rollout", "coevolve/seed3/iter2", "target"): EXPLORED | {"policy": policy("coevolve/seed3/iter1")},
    ("rollout", "coevolve/seed3/iter2", "failure"): EXPLORED | {"policy": policy("coevolve/seed3/iter1", "failure")},
    ("pairs", "coevolve/seed3/iter2", "target"): {
        "tasks": f"{DATA}/explore.jsonl",
        "experts": f"{DATA}/experts.jsonl",
        "target": episodes("coevolve/seed3/iter2"),
        "failure": episodes("coevolve/seed3/iter2", "failure"),
    },
    ("pairs", "coevolve/seed3/iter1", "failure"): {
        "tasks": f"{DATA}/explore.jsonl",
        "experts": f"{DATA}/experts.jsonl",
        "target": episodes("base/seed3"),
        "failure": episodes("base/seed3", "failure"),
    },
    ("train", "coevolve/seed3/iter2", "failure"): {
        "pairs": f"{TINY}/coevolve/seed3/iter2/pairs/failure/pairs.jsonl",
        "start": policy("coevolve/seed3/iter1", "failure"),
        "scores": f"{TINY}/coevolve/seed3/iter2/reference/failure/target_failure/scores.safetensors",
    },
    ("evaluate", "coevolve/seed3/iter2", None): PLAYED
    | {"tasks": f"{DATA}/evaluate.jsonl", "policy": policy("coevolve/seed3/iter2")},
    # Song et al. 2024, RFT: the experts of SFT and the successes of its policy, from the policy before SFT.
    ("select", "rft/seed3/iter1", "target"): {"experts": f"{DATA}/sft.jsonl", "target": episodes("base/seed3")},
    ("rft_train", "rft/seed3/iter1", "target"): {
        "selected": f"{TINY}/rft/seed3/iter1/selected/target/selected.jsonl",
        "start": START,
    },
    # Xiong et al. 2024, IPR: the agent explores with its last policy, the policy of SFT scores and is the reference.
    ("steps", "ipr/seed3/iter2", "target"): EXPLORED
    | {
        "policy": policy("ipr/seed3/iter1"),
        "scorer": policy("base/seed3"),
        "experts": f"{DATA}/experts.jsonl",
        "target": episodes("ipr/seed3/iter2"),
    },
    ("train", "ipr/seed3/iter2", "target"): {
        "pairs": f"{TINY}/ipr/seed3/iter2/pairs/target/pairs.jsonl",
        "start": policy("ipr/seed3/iter1"),
        "scores": f"{TINY}/ipr/seed3/iter2/reference/target/pairs/scores.safetensors",
    },
    ("ppo", "ppo/seed3/iter1", "target"): EXPLORED | {"policy": policy("base/seed3")},
    ("grpo", "grpo/seed3/iter1", "target"): EXPLORED | {"policy": policy("base/seed3")},
}


@pytest.mark.parametrize("job", JOBS, ids=lambda job: " ".join(filter(None, job)))
def test_a_job_reads_these_files(plan, job):
    stage, branch, agent = job
    wildcards = WEBSHOP | {"branch": branch} | ({"agent": agent} if agent else {})
    assert plan.require(stage, wildcards).inputs == JOBS[job]


@pytest.mark.parametrize(
    ("method", "agent", "of", "expected"),
    [
        ("coevolve", "target", "experts_target_failure", policy("coevolve/seed3/iter1")),
        ("coevolve", "failure", "target_failure", policy("coevolve/seed3/iter1", "failure")),
        ("eto", "target", "experts_target", policy("eto/seed3/iter1")),
    ],
)
def test_the_reference_policy_is_the_start_of_the_iteration(plan, method, agent, of, expected):
    place = {"model": "tiny", "env": "webshop", "branch": f"{method}/seed3/iter2", "agent": agent, "of": of}
    assert plan.require("reference", place).inputs["policy"] == expected


def test_a_compute_matched_control_counts_the_pairs_of_both_agents():
    """The failure agent of the last iteration is not trained, unless it is trained first, so its pairs do not count."""

    def counted(iteration, *overrides):
        plan = Plan(load_suite("smoke_methods", ["seeds=[3]", "iterations.webshop=3", *overrides]))
        branch = {"branch": f"eto_matched/seed3/iter{iteration}", "agent": "target"}
        job = plan.require("train", WEBSHOP | branch)
        plan.jobs(job.files)
        return job.inputs["steps_like"]

    def pairs(branch, *agents):
        return [f"{TINY}/{branch}/pairs/{agent}/pairs.jsonl" for agent in agents]

    assert counted(2) == pairs("coevolve/seed3/iter2", "target", "failure")
    assert counted(3) == pairs("coevolve/seed3/iter3", "target")
    first = counted(3, "recipes.eto_matched.settings.dpo.steps_like=failure_agent_first")
    assert first == pairs("failure_agent_first/seed3/iter3", "target", "failure")
    for key, value in (("epochs", 3.0), ("batch_size", 16)):  # steps would be counted otherwise
        with pytest.raises(
            UserError, match=rf"dpo\.{key}: .* the steps of `coevolve`, which has {value}; set it to {value}"
        ):
            counted(1, f"recipes.eto_matched.settings.dpo.{key}={2 * value}")


def test_the_files_of_a_given_checkpoint_are_inputs(tmp_path):
    """So that other weights under the same path are another policy; what the kit wrote beside them is none."""
    changes = ["tiny=null", "pretrain=null", "parameters=1e6", f"path={tmp_path}"]
    suite = load_suite("smoke", [f"models.tiny.{change}" for change in changes])

    def job():
        plan = Plan(suite)
        return plan, plan.require("untrained", WEBSHOP | {"branch": "base/untrained"})

    plan, planned = job()
    problem = str(plan.missing_input(planned))
    assert problem.startswith(f"{tmp_path}/config.json: input `checkpoint` of stage `untrained` does not")
    for name in ("config.json", "model.safetensors", "policy.json", "provenance.json", ".cache"):
        (tmp_path / name).write_text("{}")
    plan, planned = job()
    assert plan.missing_input(planned) is None
    assert planned.inputs == {"checkpoint": [f"{tmp_path}/config.json", f"{tmp_path}/model.safetensors"]}


def test_the_files_that_a_machine_extends_are_inputs(root, monkeypatch):
    monkeypatch.chdir(root)
    folder = "configs/machines"
    plan = Plan(load_suite("smoke"), machine=f"{folder}/cpu_pretrained.yaml")
    for stage in ("costs", "failures"):
        inputs = plan.products[stage].inputs
        assert inputs["machine"] == f"{folder}/cpu_pretrained.yaml"
        assert inputs["machine_parents"] == [f"{folder}/cpu.yaml"]
        assert set(plan.input_names(plan.products[stage])) >= inputs.keys()


def test_a_method_can_score_one_source_alone(monkeypatch):
    def scored(row):
        plan = Plan(load_suite("smoke_methods", ["iterations.webshop=2", f"recipes.mine={row}"]))
        path = plan.require("train", WEBSHOP | {"branch": "mine/seed0/iter2", "agent": "target"}).inputs["scores"]
        job = plan.job(path)
        assert job.stage.name == "reference"
        assert path == f"{TINY}/mine/seed0/iter2/reference/target/{job.wildcards['of']}/scores.safetensors"
        return job.wildcards["of"]

    kind = "agents: {target: {trains_on: {expert_target: null, failure_failure: {dpo: 1.0, sft: 0.0}}}}"
    assert scored("{extends: eto, settings: {pairing: {failures: {keep: random, per_task: 1}}}}") == "pairs"
    assert scored("{extends: eto}") == "experts_target"
    assert scored("{extends: coevolve}") == "experts_target_failure"
    monkeypatch.setitem(KIND_AGENTS, PairKind.FAILURE_FAILURE, ("target", "target"))  # no kind is of one agent yet
    assert scored(f"{{extends: eto, {kind}}}") == "target"


def test_a_frozen_agent_that_explores_once_has_the_same_episodes_in_all_iterations_of_all_rows():
    plan = Plan(load_suite("science_dose"))
    rows, place = ("dose_hardest", "dose_random", "dose_easiest"), ("tiny", "sciworld")
    explored = {
        (method, iteration): plan.paper.iteration(Subject(*place, Branch(method, 8, iteration))).rollouts
        for method, iteration in product(rows, (1, 2, 3))
    }
    once = "results/science_dose/tiny/sciworld/dose_hardest/seed8/iter1/rollout/failure/episodes.jsonl"
    assert {each["failure"]["episodes.jsonl"] for each in explored.values()} == {once}
    assert len({each["target"].key for each in explored.values()}) == 1 + 3 * 2, "the first iteration's is shared"
    job = plan.job(once)
    assert plan.settings(job).rollout.k == 8
    policy = "results/science_dose/tiny/sciworld/base/seed8/policy/failure/policy.json"
    assert job.inputs["policy"] == policy


def test_shared_iterations_are_played_with_the_settings_of_their_own_row():
    """`late` shares ETO's first iteration, and explores and is evaluated otherwise from the second on."""
    row = "{extends: eto, shares: {method: eto, first: 1}, settings: {rollout: {k: 2}, evaluation: {temperature: 0.7}}}"
    plan = Plan(load_suite("smoke_methods", ["seeds=[3]", "iterations.webshop=3", f"recipes.late={row}"]))
    place, own = ("tiny", "webshop"), f"{TINY}/late/seed3"
    late = [plan.paper.iteration(Subject(*place, Branch("late", 3, iteration))) for iteration in (1, 2)]
    explored = [each.rollouts["target"]["episodes.jsonl"] for each in late]
    assert explored == [episodes("base/seed3"), f"{own}/iter2/rollout/target/episodes.jsonl"]
    evaluated, of_eto = (paths_of(plan.records([method])) for method in ("late", "eto"))
    assert len(evaluated) == 4 and evaluated[:2] == of_eto[:2]
    assert evaluated[2] == f"{own}/iter2/eval/records.jsonl"
    assert all(plan.job(path) for path in (*explored, *evaluated))
