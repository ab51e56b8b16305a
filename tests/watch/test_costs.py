import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_run import run_job

from coevolve.config.loading import load_suite, read_machine
from coevolve.config.machine import Shards, job_resources
from coevolve.errors import UserError
from coevolve.pipeline.plan import Plan
from coevolve.report import costs
from coevolve.report.number_text import readable
from coevolve.watch import disk, estimates


@pytest.fixture
def machine(root):
    return read_machine(root / "configs/machines/h100.yaml")


@pytest.fixture
def plan(root, machine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what was downloaded here counts as done
    return Plan(load_suite(root / "configs/suites/paper.yaml"), root=str(tmp_path), shards=machine.shards)


#: A full run of `paper` makes the positive-agent ablation too.
ROWS_ALONE = "ablations.positive_agent.default=false"
EVALUATED = {"model": "llama2-7b-chat", "env": "webshop", "branch": "base/seed0"}
WILDCARDS = {**EVALUATED, "agent": "target"}


def workload(plan, stage, names):
    return plan.workload(plan.require(stage, names))


def test_fine_tuning_is_six_operations_a_weight_token_and_epoch(plan, machine):
    found = estimates.cost(plan, machine, plan.require("sft", WILDCARDS))
    learning = (found.seconds - machine.costs.startup_seconds) * 4 / 3600
    assert learning == pytest.approx(6 * 6.74e9 * 1823 * 2000 * 3 / (9.89e14 * 0.2) / 3600)
    assert 0.5 < learning < 0.7
    assert found.gpu_hours == pytest.approx(found.seconds * 4 / 3600)
    assert found.bytes == pytest.approx(6.74e9 * 4)


def test_parts_cost_together_what_the_whole_costs_but_for_their_starts(root, plan, machine):
    names = {**EVALUATED, "whole": "rollout/target"}
    whole, divided = (
        Plan(plan.suite, root=plan.root, shards=Shards(rollout={"webshop": number, "sciworld": 2}, evaluate=1))
        for number in (1, 4)
    )
    alone = estimates.cost(whole, machine, whole.require("shard", {**names, "part": "1of1"}))
    part = estimates.cost(divided, machine, divided.require("shard", {**names, "part": "1of4"}))
    start = machine.costs.startup_seconds
    assert 4 * (part.seconds - start) == pytest.approx(alone.seconds - start)
    joined = plan.require("rollout", WILDCARDS)
    assert estimates.cost(plan, machine, joined).gpu_hours == 0, "putting them together is no work"


def test_turns_cost_what_their_environment_declares_times_the_machines_scale(plan, machine):
    expected = plan.suite.envs["webshop"].expected
    slower = machine.model_copy(update={"costs": machine.costs.model_copy(update={"turn_scale": 3.0})})
    whole = Plan(plan.suite, root=plan.root)
    job = whole.require("evaluate", EVALUATED)
    once, thrice = (estimates.cost(whole, each, job).seconds for each in (machine, slower))
    turns = expected.evaluate * plan.suite.evaluation.samples * expected.turns
    assert thrice - once == pytest.approx(2 * turns * expected.turn_seconds)
    written = estimates.cost(whole, machine, job).bytes
    assert written == 12 * whole.workload(job).kept > 0


def test_a_line_adds_up_what_was_made_here_and_counts_what_another_suite_made():
    made = [costs.Cost(3600.0, 1.0, 2e9, measured=1800.0, measured_cpu=cpu) for cpu in (900.0, None)]
    taken, planned = costs.Cost(3600.0, 1.0, 2e9, measured=7200.0, reused=True), costs.Cost(1800.0, 0.5, 1e9)
    assert costs.lines([("sft", made[0]), ("sft", taken), ("train", made[1]), ("train", planned)]) == [
        costs.Line("sft", 2, 2.0, 2.0, 4.0, 1, 1.0, 0.5, reused=1, reused_hours=2.0, done_cpu_hours=0.25),
        costs.Line("train", 2, 1.5, 1.5, 3.0, 1, 1.0, 0.5),
        costs.Line("all", 4, 3.5, 3.5, 7.0, 2, 2.0, 1.0, reused=1, reused_hours=2.0),
    ]


def test_continuations_are_played_from_each_second_step_at_half_the_cost(root):
    names, paper = {**WILDCARDS, "branch": "ipr/seed0/iter1"}, root / "configs/suites/paper.yaml"
    of = {every: workload(Plan(load_suite(paper, [f"steps.every={every}"])), "steps", names).write for every in (1, 2)}
    assert of[1] == pytest.approx(2 * of[2]) and of[2] > 0


def test_rejection_sampling_trains_on_the_experts_and_the_successes_expected_of_its_exploration(plan):
    """`sft_all` explores nothing and has an expert for each explored task."""
    expected = plan.suite.envs["webshop"].expected
    succeeded = 1 - expected.failures
    for method, of_a_task in (("sft_all", 1.0), ("rft", succeeded), ("rft_10", 10 * succeeded)):
        trained = workload(plan, "rft_train", {**WILDCARDS, "branch": f"{method}/seed0/iter1"}).train
        examples = expected.experts + expected.explore * of_a_task
        assert trained == pytest.approx(examples * expected.tokens * plan.suite.sft.epochs), method


def test_a_compute_matched_control_trains_on_as_much_as_the_agents_that_it_is_matched_to(plan):
    def trained(method, iteration, agent="target"):
        branch = f"{method}/seed0/iter{iteration}"
        return workload(plan, "train", {**WILDCARDS, "branch": branch, "agent": agent}).train

    target, failure = trained("coevolve", 2), trained("coevolve", 2, "failure")
    assert trained("eto_matched", 2) == pytest.approx(target + failure) and failure > 0
    assert trained("eto_matched", 3) == pytest.approx(target), "the failure agent is not trained any more"


def test_gradients_cost_one_forward_and_two_backward_passes_over_the_measured_pairs_at_two_policies(root, machine):
    plan = Plan(load_suite(root / "configs/suites/paper.yaml", ["gradients.pairs=32"]))
    names = {**WILDCARDS, "branch": "coevolve/seed0/iter1"}
    seconds = estimates.cost(plan, machine, plan.require("gradients", names)).seconds - machine.costs.startup_seconds
    pairs, tokens = 3 * 32, 2 * plan.suite.envs["webshop"].expected.tokens
    assert seconds == pytest.approx(2 * (2 + 2 * 4) * 6.74e9 * pairs * tokens / (9.89e14 * 0.2))
    jobs = Plan(load_suite(root / "configs/suites/paper.yaml")).jobs()
    assert not any(job.stage.name == "gradients" for job in jobs)


def test_playing_costs_what_the_engine_that_plays_takes(root, plan, machine):
    """vLLM where the suite samples with it; the built-in engine elsewhere, and in trainings that play."""

    def rates(stage, branch, suite=plan.suite):
        whole, names = Plan(suite), EVALUATED if stage == "evaluate" else WILDCARDS
        job = whole.require(stage, {**names, "branch": branch})
        work, seconds = whole.workload(job), estimates.cost(whole, machine, job).seconds
        flops = 9.89e14 * job_resources(machine, stage).processes
        trained = 6 * 6.74e9 * work.train / (flops * machine.costs.training)
        left = seconds - machine.costs.startup_seconds - work.turn_seconds - trained
        return left / (2 * 6.74e9 / flops), work.read, work.write

    own, vllm = (machine.costs.reading, machine.costs.writing), (machine.costs.vllm_reading, machine.costs.vllm_writing)
    built_in = load_suite(root / "configs/suites/paper.yaml", ["sampler={engine: transformers}"])
    for (left, read, write), (reading, writing) in {
        rates("evaluate", "base/seed0"): vllm,
        rates("evaluate", "base/seed0", built_in): own,
        rates("ppo", "ppo/seed0/iter1"): own,
        rates("grpo", "grpo/seed0/iter1"): own,
    }.items():
        assert left == pytest.approx(read / reading + write / writing)


def test_hours_are_a_range_where_the_machine_has_ends(plan, machine):
    rows, fast, slow = (
        costs.lines((stage, cost) for stage, _, cost in estimates.jobs(plan, each))
        for each in (machine, *costs.paced(machine))
    )
    for low, middle, high in zip(fast, rows, slow, strict=True):
        assert (low.gpu_hours < middle.gpu_hours < high.gpu_hours) or middle.gpu_hours == 0, middle.name
    text = costs.text("stage", rows, ends=(fast, slow))
    whole, least, most = (readable(each[-1].gpu_hours) for each in (rows, fast, slow))
    assert f"{whole} ({least} to {most})" in text
    assert costs.paced(machine.model_copy(update={"costs": read_machine("cpu").costs})) == ()


def test_trainings_of_the_papers_models_fit_a_gpu_as_they_are_laid_out(machine):
    large = read_machine("h100_13b")
    memory = {
        (suite, *key): bytes_
        for suite, nodes in (("paper", machine), ("base_models", large))
        for key, bytes_ in estimates.memory(Plan(load_suite(suite)), nodes).items()
    }
    assert {stage for _, _, stage in memory} == {"sft", "rft_train", "train"} and max(memory.values()) < 80e9
    wide = Plan(load_suite("base_models", ["dpo.micro_batch=4"]))
    assert estimates.memory(wide, large)["llama2-13b-chat", "train"] == pytest.approx(83e9, rel=0.01)
    assert estimates.memory(wide, read_machine("cpu")) == {}


def test_a_batch_that_the_processes_of_its_training_do_not_divide_is_refused_before_the_first_job(root, machine):
    for suite in ("paper", "reviewer"):
        plan = Plan(load_suite(suite), shards=machine.shards)
        estimates.require_whole_batches(plan, machine, plan.jobs())
    plan = Plan(load_suite("paper", ["recipes.eto.settings.dpo.batch_size=20"]), shards=machine.shards)
    problem = r"paper: `batch_size` 20 of stage train is not a multiple of `micro_batch` \d+ times \d processes;"
    with pytest.raises(UserError, match=problem):
        estimates.require_whole_batches(plan, machine, plan.jobs())


def test_what_was_measured_stands_beside_what_was_predicted_for_it(plan, machine):
    folder = plan.require("sft", WILDCARDS).folder
    Path(folder).mkdir(parents=True)
    Path(folder, "provenance.json").write_text(json.dumps({"seconds": 7200.0, "cpu_seconds": 3600.0}))
    rows = {row.name: row for row in costs.lines((stage, cost) for stage, _, cost in estimates.jobs(plan, machine))}
    assert rows["sft"].done == rows["all"].done == 1
    assert rows["sft"].done_measured_hours == 2.0
    assert rows["sft"].done_cpu_hours == rows["all"].done_cpu_hours == 1.0
    assert rows["all"].jobs == sum(row.jobs for row in rows.values()) - rows["all"].jobs
    assert rows["all"].gpu_hours == pytest.approx(sum(r.gpu_hours for n, r in rows.items() if n != "all"))
    header, _, *body = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in costs.text("stage", list(rows.values())).splitlines()
    )
    of_done = ["done", "predicted", "measured", "CPU time", "ratio"]
    assert header == ["stage", "jobs", "time", "GPU-hours", "disk", *of_done]
    table = {row[0]: dict(zip(header, row, strict=True)) for row in body}
    assert (table["sft"]["measured"], table["sft"]["CPU time"]) == ("2 h", "1 h")
    (others,) = (name for name in table if name.endswith(" others"))
    assert "pairs" not in table and others == f"{len(rows) - len(table) + 1} others", "jobs of seconds are one line"
    assert sum(int(row["jobs"]) for row in table.values()) == 2 * rows["all"].jobs


def test_the_table_has_no_column_for_what_there_is_none_of(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what was downloaded here counts as done
    plan = Plan(load_suite(root / "configs/suites/smoke.yaml"), root="nowhere")
    jobs = estimates.jobs(plan, read_machine(root / "configs/machines/cpu.yaml"))
    header = costs.text("stage", costs.lines((stage, cost) for stage, _, cost in jobs)).splitlines()[0]
    assert [cell.strip() for cell in header.strip("|").split("|")] == ["stage", "jobs", "time", "disk"]


def test_the_fit_finds_the_constants_that_the_jobs_were_made_with(root, tmp_path):
    """Seconds of a machine twice as fast in training, half as fast in playing and in starting."""
    machine = root / "configs/machines/cpu.yaml"
    known = read_machine(machine)
    own = known.costs
    other = {"training": own.training * 2, "reading": own.reading / 2, "writing": own.writing / 2}
    real = known.model_copy(
        update={"costs": own.model_copy(update={**other, "startup_seconds": own.startup_seconds * 2})}
    )
    plan = Plan(load_suite(root / "configs/suites/smoke.yaml"), root=str(tmp_path / "results"))
    for job in plan.jobs():
        if seconds := estimates.cost(plan, real, job).seconds:
            Path(job.folder).mkdir(parents=True)
            Path(job["provenance.json"]).write_text(json.dumps({"seconds": seconds}))
    command = [sys.executable, root / "benchmarks/costs.py", "--suite", root / "configs/suites/smoke.yaml"]
    said = subprocess.run(
        [*command, "--machine", machine], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    found = dict(re.findall(r"^(\w+): (\S+) \(is", said, re.MULTILINE))
    for key in ("startup_seconds", "training", "reading", "writing"):
        assert float(found[key]) == pytest.approx(getattr(real.costs, key), rel=0.01)


def test_the_disk_of_the_paper_with_pruned_weights_is_that_of_its_bases_and_last_targets(root, machine, tmp_path):
    """One seed of the three rows keeps 0.33 TB; an ablation with three seeds 1.4 TB."""

    def of(*overrides, methods=("sft", "eto", "coevolve")):
        settings = [f"methods=[{','.join(methods)}]", ROWS_ALONE, *overrides]
        plan = Plan(load_suite(root / "configs/suites/paper.yaml", settings), root=str(tmp_path), shards=machine.shards)
        return disk.disk(plan, machine)

    seed, policy = of(), 6.74e9 * 4
    assert 12 * policy < seed.kept < 12.2 * policy and seed.kept <= 330e9
    checkpoints = 2 * 16 * 6.74e9
    assert seed.kept + 2 * checkpoints < seed.peak < seed.written + checkpoints, "a node runs two trainings at a time"
    adapted = of("models.llama2-7b-chat.lora={rank: 16, alpha: 32, dropout: 0.0, target_modules: all-linear}")
    assert adapted.kept + adapted.downloads == adapted.written, "no adapters are pruned: others start from them"
    policies, matrices = 36, 16 * 32 * (8 * 4096 + 3 * (4096 + 11008))
    assert adapted.kept - 4 * policies * matrices == pytest.approx(seed.kept - 12 * policy, rel=0.1)
    ablation = ("positive_agent", "eto", "coevolve")
    assert of("seeds=[0,1,2]", methods=ablation).kept <= 1400e9
    everything = disk.disk(
        Plan(load_suite(root / "configs/suites/paper.yaml")), machine.model_copy(update={"prune_weights": False})
    )
    assert everything.kept + everything.downloads == everything.written


def test_the_paper_takes_27_gpu_hours(plan, machine):
    """With 0.4 of the peak and 120 s a start; three rows and one seed."""
    rows = load_suite("paper", ["methods=[sft,eto,coevolve]", ROWS_ALONE])
    plan = Plan(rows, root=plan.root, shards=machine.shards)
    costs_then = {"training": 0.4, "vllm_reading": 0.4, "vllm_writing": 0.03, "startup_seconds": 120}
    then = machine.model_copy(update={"costs": machine.costs.model_copy(update=costs_then)})
    jobs = [(job.stage.name, estimates.cost(plan, then, job)) for job in plan.jobs()]
    assert sum(cost.gpu_hours for _, cost in jobs) <= 27
    assert len([stage for stage, _ in jobs if stage in ("sft", "train")]) == 36


def test_a_checkpoint_is_linked_and_a_tiny_model_written(root):
    kept = {}
    for suite, model in (("real", "smollm2-135m"), ("smoke", "tiny")):
        plan = Plan(load_suite(suite))
        (job, *_) = (job for job in plan.jobs() if job.stage.name == "untrained" and job.subject.model == model)
        kept[suite] = plan.workload(job).keeps_weights
    assert kept == {"real": False, "smoke": True}


def test_an_untrained_policy_plays_the_episodes_that_are_expected_of_it(root):
    plan = Plan(load_suite(root / "configs/suites/real.yaml"))
    rows = {
        branch: workload(plan, "evaluate", {"model": "smollm2-135m", "env": "sciworld", "branch": branch})
        for branch in ("base/untrained", "in_context/seed0", "base/seed0", "eto/seed0/iter1")
    }
    expected = plan.suite.envs["sciworld"].expected
    for branch, means in zip(rows, [expected.untrained, expected.untrained, expected, expected], strict=True):
        assert rows[branch].write == expected.evaluate * means.turns * means.action_tokens
        assert rows[branch].read + rows[branch].write == expected.evaluate * means.tokens
    assert rows["base/untrained"].write > 3 * rows["base/seed0"].write


def test_expert_pairs_are_expected_of_their_own_share_of_rollouts(root):
    """Without the share, of every failure."""
    place = {**WILDCARDS, "branch": "coevolve/seed0/iter1"}
    plans = [
        Plan(load_suite(root / "configs/suites/paper.yaml", settings))
        for settings in ([], ["envs.webshop.expected.expert_pair_share=0.25"])
    ]
    of_failures, of_quarter = (workload(plan, "train", place).train for plan in plans)
    suite = plans[0].suite
    expected = suite.envs["webshop"].expected
    pairs = 2 * expected.explore * (expected.failures - 0.25)  # with both agents' rollouts
    assert of_failures - of_quarter == pytest.approx(pairs * 2 * expected.tokens * suite.dpo.epochs)


def test_a_reviewer_needs_one_gpu_and_no_file_but_the_model(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    alone = read_machine(root / "configs/machines/one-gpu.yaml")
    plan = Plan(load_suite(root / "configs/suites/reviewer.yaml"), root=str(tmp_path), shards=alone.shards)
    stages = {job.stage.name for job in plan.jobs()}
    assert "snapshot" in stages and "download" not in stages
    assert all(job_resources(alone, stage).processes == 1 and job_resources(alone, stage).gpus <= 1 for stage in stages)
    total = costs.lines((stage, cost) for stage, _, cost in estimates.jobs(plan, alone))[-1]
    assert 1 < total.gpu_hours < 3


@pytest.mark.parametrize(
    "name", ["llama2-7b-chat", "llama2-13b-chat", "qwen3-4b", "qwen3-4b-instruct-2507", "qwen3-0.6b"]
)
def test_every_model_of_the_hub_is_planned_from_its_pinned_commit(root, tmp_path, name):
    suite = tmp_path / "own.yaml"
    names = ("parts/hyperparameters", "envs/webshop", f"models/{name}")
    parts = [str(root / f"configs/{part}.yaml") for part in names]
    suite.write_text(f"extends: [{', '.join(parts)}]\nsuite: own\nprotocol: fixed\nseeds: [0]\nmethods: [sft]\n")
    plan = Plan(load_suite(suite))
    assert list(plan.suite.models) == [name]
    assert [job.wildcards for job in plan.jobs() if job.stage.name == "snapshot"] == [{"model": name}]


def test_jobs_that_were_not_estimated_when_they_ran_are_left_out_and_counted(made, tmp_path):
    """`expected` is in no digest, so that adding it makes none of them again."""
    with contextlib.chdir(shutil.copytree(made, tmp_path / "run", symlinks=True)):
        plan = Plan(load_suite("configs/glance.yaml"))
        text, counts = costs_of(plan)
        assert "Not in the tables" not in text
        for record in Path("results/glance/tiny/webshop/eto").rglob("eval/provenance.json"):
            record.write_text(json.dumps(json.loads(record.read_text()) | {"workload": None}))
        after, fewer = costs_of(plan)
    assert after.endswith(f"\nNot in the tables: 1 of {counts['all']} jobs, which ran without `expected`.\n")
    assert (fewer["evaluate"], fewer["all"]) == (counts["evaluate"] - 1, counts["all"] - 1)


def test_the_costs_of_a_slurm_run_have_what_its_accounting_counts(root, made, tmp_path, monkeypatch):
    """`sacct.txt` is what sacct of Slurm 22.05.8 with slurmdbd printed of seven jobs, for the options that it is given.

    Jobs 16 (requeued once), 17 and 18 left results here; 19 failed, 20 was cancelled, 22 runs.
    """
    recorded, tool = root / "tests/watch/sacct.txt", tmp_path / "bin/sacct"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\ncat {recorded}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    with contextlib.chdir(shutil.copytree(made, tmp_path / "run", symlinks=True)):
        plan = Plan(load_suite("configs/glance.yaml"))
        before, _ = costs_of(plan)
        assert "sacct" not in before and not Path(tmp_path / "asked").exists(), "no job ran under Slurm"
        for number, path in enumerate(sorted(Path().glob("results/*/*/*/*/seed0/**/provenance.json"))[:3], start=16):
            record = json.loads(path.read_text())
            path.write_text(json.dumps(record | {"stage": "train" if number < 18 else "sft", "slurm_job": str(number)}))
        text, _ = costs_of(plan)
        rows = {row["name"]: row for row in json.loads(Path(plan.products["costs"]["costs.json"]).read_text())["slurm"]}
    assert "Slurm's accounting of this run" in text
    assert {name: row["attempts"] for name, row in rows.items()} == {
        "train": 3, "sft": 1, "failed": 1, "cancelled": 1, "all": 6,
    }  # fmt: skip
    hours = {key: 3600 * rows["train"][key] for key in ("waited_hours", "hours", "gpu_hours")}
    assert hours == pytest.approx({"waited_hours": 0 + 1 + 9, "hours": 3 + 6 + 9, "gpu_hours": 2 * 3 + 8 * 6 + 2 * 9})
    assert 3600 * rows["sft"]["gpu_hours"] == pytest.approx(16 * 4), "of both nodes"
    of_numbers, of_run = (tmp_path / "asked").read_text().splitlines()
    assert of_numbers.startswith("--jobs 16,17,18 --allocations --parsable2 --noheader --format=JobIDRaw,")
    assert of_run.startswith("--name coevolve_5b1d3c7e-64a1-4c55-8d0e-0f4b9c1a2e77 --starttime 2026-11-26T11:44:30 ")


def costs_of(plan):
    """The text of the stage `costs`, which runs here, and its numbers of jobs by stage."""
    run_job(plan, plan.products["costs"])
    folder = Path(plan.products["costs"].folder)
    rows = json.loads((folder / "costs.json").read_text())["stage"]
    return (folder / "costs.md").read_text(), {row["name"]: row["jobs"] for row in rows}
