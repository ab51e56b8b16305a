import math
import re
from collections import Counter

import pytest
import yaml

from coevolve.config.loading import load_suite
from coevolve.config.machine import Shards, job_resources
from coevolve.config.suite import for_method
from coevolve.errors import UserError
from coevolve.pipeline.branch import Branch
from coevolve.pipeline.machine import load_machine, snakemake_resources
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.registry import ENDS, STAGES
from coevolve.pipeline.stage import Subject
from coevolve.pipeline.stages.shard import part
from coevolve.pipeline.targets import targets
from coevolve.records.episodes import Task


def test_gpus_reach_the_stages_that_use_them_and_a_second_attempt_gets_more(root):
    machine = load_machine("h100")
    asked = snakemake_resources(machine, "train")
    assert asked["gpu"] == asked["processes"] == 4 and asked["gpu_model"] == "h100"
    assert "gpu" not in snakemake_resources(machine, "pairs")
    for name in ("mem_mb", "runtime"):
        assert asked[name](None, 2) == 2 * asked[name](None, 1)
    assert asked["mem_mb"](None, 5) == 1000 * machine.most.memory_gb < 5 * asked["mem_mb"](None, 1), "a node's memory"


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("account: 0123", "slurm_account", "0123"),
        ("account: 0089", "slurm_account", "0089"),
        ("account: 4711", "slurm_account", "4711"),
        ("account: 12:30", "slurm_account", "12:30"),
        ("qos: 07", "qos", "07"),
        ("partition: [a, 10]", "slurm_partition", "a,10"),
        ("partition: a,b", "slurm_partition", "a,b"),
        ("gpu: 3090", "gpu_model", "3090"),
        ("extra: --constraint=fast", "slurm_extra", "--constraint=fast"),
    ],
)
def test_names_reach_slurm_as_they_are_written(root, tmp_path, line, name, value):
    text = (root / "configs/machines/h100.yaml").read_text()
    (tmp_path / "own.yaml").write_text(re.sub(rf"^{line.split(':')[0]}:.*$", line, text, flags=re.MULTILINE))
    assert snakemake_resources(load_machine(tmp_path / "own.yaml"), "train")[name] == value


def test_a_time_in_hours_is_not_a_number_of_minutes(root, tmp_path):
    """YAML reads 24:00:00 as 86,400, in base 60."""
    text = (root / "configs/machines/h100.yaml").read_text()
    changed = re.sub(r"(most: .*minutes: )\d+", r"\g<1>24:00:00", text)
    assert changed != text
    (tmp_path / "own.yaml").write_text(changed)
    with pytest.raises(UserError, match=r"key `most.minutes`: .* \(got '24:00:00'"):
        load_machine(tmp_path / "own.yaml")


DEFAULT = {"cpus": 1, "memory_gb": 1, "minutes": 1}


def stages(default=DEFAULT, **others):
    """The change of a machine that has these stages alone."""
    return {"stages": {"default": default, **others}}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"gpus": 4}, "unknown key `gpus`; did you mean `gpu`"),
        (stages(DEFAULT | {"gpus": 9}), "9 GPUs of a node that has 8"),
        ({"stages": {"train": {"cpus": 1}}}, "`default` is missing"),
        ({"stages": [1]}, "each holds keys"),
        (stages(sft={"gpus": 8, "processes": 12, "nodes": 5}), "`sft` has 12 processes, not a multiple of 5 nodes"),
        (stages(sft={"gpus": 4, "processes": 8}), "stages: `sft` has 8 processes for 4 GPUs"),
        (stages(reference={"gpus": 8, "processes": 8}), "`reference` runs in one process; remove the key"),
        (stages(DEFAULT | {"gpus": 8, "processes": 8}), "key `stages.default.processes`: `convert` runs in one"),
        ({"vllm": {"tensor_parallel_size": 2}}, "it is 2, but a job of `evaluate` requests 1 GPUs; make them equal."),
        ({"launch": None}, "set `launch`"),
        ({"most": {"memory_gb": 100, "minutes": 600}}, "requests more than `most` allows"),
        (stages(3), "each holds keys"),
        (stages(shrd={}), "key `stages.shrd`: no such stage; did you mean `shard`"),
        ({"costs": {"flops": -1}}, "key `costs.flops`"),
        ({"costs": {"flops": "many"}}, "key `costs.flops`"),
        ({"costs": {"flops": math.nan}}, "key `costs.flops`"),
        ({"shards": {"rollout": 0}}, "shards.rollout"),
    ],
)
def test_a_bad_machine_is_one_sentence(root, tmp_path, change, sentence):
    raw = yaml.safe_load((root / "configs/machines/h100.yaml").read_text())
    raw |= {**change, "costs": raw["costs"] | change.get("costs", {})}
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(raw))
    with pytest.raises(UserError, match=re.escape(sentence)) as caught:
        load_machine(tmp_path / "bad.yaml")
    assert str(caught.value).startswith(str(tmp_path / "bad.yaml"))


def test_what_puts_shards_together_stays_out_of_the_queue_and_what_plays_does_not(root):
    machine = load_machine("h100")
    assert job_resources(machine, "rollout").local and "gpu" not in snakemake_resources(machine, "rollout")
    alone = machine.model_copy(update={"shards": Shards(rollout=1, evaluate=1)})
    assert not job_resources(alone, "rollout").local and snakemake_resources(alone, "rollout")["gpu"] == 1


def test_another_evaluation_replays_no_exploration(root):
    shards, other = Shards(rollout=2, evaluate=2), ["evaluation.samples=3", "evaluation.temperature=1.0"]
    plans = [Plan(load_suite("smoke", more), shards=shards) for more in ([], other)]
    for whole, same in (("rollout/target", True), ("eval", False)):
        wildcards = {"model": "tiny", "env": "webshop", "branch": "base/seed0", "whole": whole, "part": "1of2"}
        before, after = (plan.fingerprint(plan.require("shard", wildcards)) for plan in plans)
        assert (before == after) == same


def test_parts_are_disjoint_whole_and_keep_a_repeated_task_together():
    tasks = [Task(env="e", task_id=name, split="train") for name in "abcdeafga"]
    parts = [part(tasks, number, 3) for number in (1, 2, 3)]
    assert sorted(t.task_id for p in parts for t in p) == sorted(t.task_id for t in tasks)
    assert [p for p in parts if any(t.task_id == "a" for t in p)] == [parts[0]]
    assert {len({t.task_id for t in p}) for p in parts} == {2, 3}


def test_a_divided_rollout_has_the_seeds_and_files_of_a_whole_one(root):
    suite = load_suite("smoke")
    whole, divided = Plan(suite), Plan(suite, shards=Shards(rollout=3, evaluate=2))
    made = [{job.key: job.outputs for job in plan.jobs() if job.stage.name == "rollout"} for plan in (whole, divided)]
    assert made[0] == made[1]
    counts = [[job.stage.name for job in plan.jobs()] for plan in (whole, divided)]
    assert counts[1].count("shard") == 3 * counts[0].count("rollout") + 2 * counts[0].count("evaluate")
    of_one = Plan(suite, shards=Shards(rollout={"sciworld": 3}, evaluate=1))
    parts = Counter(job.subject.env for job in of_one.jobs() if job.stage.name == "shard")
    alone = Counter(job.subject.env for job in of_one.jobs() if job.stage.name == "rollout")
    assert parts == {env: count * (3 if env == "sciworld" else 1) for env, count in alone.items()}, "each is joined"
    wildcards = {"model": "tiny", "env": "sciworld", "branch": "coevolve/seed0/iter1"}
    played = divided.require("shard", {**wildcards, "whole": "eval", "part": "1of2"})
    assert played.inputs == whole.require("evaluate", wildcards).inputs


def test_every_method_environment_and_table_can_be_asked_for_by_name(root):
    plan = Plan(load_suite("paper"))
    named = {target.name: target for target in targets(plan)}
    assert {"table1", "figure3", "webshop_coevolve", "ablation_positive_agent", "env_webshop", "method_eto"} <= set(
        named
    )
    assert set(named) & set(STAGES) == {*ENDS}, "the rule itself"
    for target in named.values():
        files = target.files()
        assert files and target.text
        assert all(plan.job(path) for path in files)
    jobs = plan.jobs(named["webshop_eto"].files())
    assert {job.wildcards.get("env", "webshop") for job in jobs} == {"webshop"}


def test_a_method_may_have_settings_of_its_own_and_extend_another(root):
    more = [
        "recipes.many={extends: coevolve, label: Many, settings: {rollout: {k: 4}, dpo: {reference: base}}}",
        "recipes.few={extends: many, label: Few, agents: {target: {trains_on: {expert_failure: null}}}}",
    ]
    plan = Plan(load_suite("smoke", more))
    wildcards = {"model": "tiny", "env": "sciworld", "branch": "many/seed0/iter1", "agent": "target"}
    assert plan.settings(plan.require("rollout", wildcards)).rollout.k == 4
    first = plan.paper.iteration(Subject("tiny", "sciworld", Branch("many", 0, 1)))
    assert first.rollouts["target"]["episodes.jsonl"].endswith("many/seed0/iter1/rollout/target/episodes.jsonl")
    scored = plan.require("reference", {**wildcards, "branch": "many/seed0/iter2", "of": "experts_target_failure"})
    assert scored.inputs["policy"].endswith("base/seed0/policy/target/policy.json")
    kinds = plan.suite.recipes["few"].agents["target"].trains_on
    assert set(kinds) == {"expert_target", "failure_failure"}


def test_settings_of_a_method_hold_for_the_rows_that_share_its_iterations(root):
    suite = load_suite("smoke", ["recipes.coevolve.settings.dpo.epochs=2"])
    assert {for_method(suite, method).dpo.epochs for method in ("coevolve", "iterations_1")} == {2.0}
    assert for_method(suite, "eto").dpo.epochs == suite.dpo.epochs != 2.0
