"""A change reaches what it touches: edits of a copy of the kit, against the jobs whose fingerprints change.

A job whose fingerprint changes runs again, and after it what reads its result.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from checkout import copy_of, environment

from coevolve.config.loading import load_suite
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.registry import ENDS, STAGES
from coevolve.storage import code_digest

SUITES = ("smoke", "smoke_methods", "smoke_agent_data", "paper")
PRODUCTS = {*ENDS, "ablation", "task_growth"}


@pytest.fixture(scope="module")
def repo(root, tmp_path_factory):
    return copy_of(root, tmp_path_factory.mktemp("reach"))


def fingerprints(repo: Path) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "tests/dag/fingerprints.py", *SUITES],
        cwd=repo, env=environment(repo), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def before(repo):
    found = fingerprints(repo)
    assert {key.split(" ")[0] for key in found} == set(SUITES)
    return found


def changed(repo, before, *edits) -> list[tuple[str, str, dict[str, str]]]:
    """(suite, stage, wildcards) of the jobs that edits reach: of each a file, a text in it and its replacement."""
    texts = {name: (repo / name).read_text() for name, _, _ in edits}
    try:
        for name, old, new in edits:
            text = (repo / name).read_text()
            assert text.count(old) == 1, f"{name}: {old}"
            (repo / name).write_text(text.replace(old, new))
        after = fingerprints(repo)
    finally:
        for name, text in texts.items():
            (repo / name).write_text(text)
    assert after.keys() == before.keys()
    keys = [key.split(" ", 2) for key in after if after[key] != before[key]]
    return [(suite, stage, json.loads(wildcards)) for suite, stage, wildcards in keys]


def stages(jobs) -> set[str]:
    return {stage for _, stage, _ in jobs}


@pytest.fixture(scope="module")
def reach():
    """The definitions that each job reaches, whose edits change its digest: (suite, stage, wildcards, definitions)."""
    plans = {name: Plan(load_suite(name)) for name in SUITES}
    jobs = [(name, job, plan.starts(job)) for name, plan in plans.items() for job in plan.jobs() if not job.stage.pin]
    known = {starts: code_digest.reachable(*starts).keys() for _, _, starts in jobs}
    return [(suite, job.stage.name, job.wildcards, known[starts]) for suite, job, starts in jobs]


def reaching(reach, definition) -> list[tuple[str, str, dict[str, str]]]:
    """(suite, stage, wildcards) of the jobs that a definition reaches, as `module.name` below `coevolve`."""
    module, name = code_digest.split(f"coevolve.{definition}")
    source = code_digest.sources("coevolve")[module].read_bytes()
    assert code_digest.definitions(module, source)[name].hash, "defined there"
    return [job for *job, reached in reach if f"{module}.{name}" in reached]


#: Definitions, and the stages that reach them.
CODE = {
    "train.losses.pair_losses": {"train"},
    "train.collate.trajectory_logps": {"train", "pretrain", "sft", "rft_train"},
    "train.collate.sft_losses": {"pretrain", "sft", "rft_train"},
    "methods.pairing.preference_pair": {"pairs", "steps"},
    "methods.rejection_sampling.select": {"select"},
    "agent_data.prompts.read_draft": {"explore_tasks"},
    "train.ppo.gae": {"ppo"},
    "train.grpo.completions": {"grpo", "grpo_round"},
    "report.regime.markdown": {"regime"},
    "report.html.report": {"page"},
    "train.settings.per_iteration": {"train", "failures", "page"},
    "config.models.training_memory": set(),
}
STEPS = "    failure_steps: Positive\n"
#: Other edits (file, text and replacement), and the stages that they reach.
EDITS = {
    "a new objective": (
        {"train"},
        ("coevolve/train/settings.py", '"ipo", "kto"]', '"ipo", "kto", "hinge"]'),
        ("coevolve/train/settings.py", '"simpo": ("margin",),', '"simpo": ("margin",), "hinge": ("margin",),'),
        ("coevolve/train/losses.py", '    "kto": kto,\n', '    "kto": kto,\n    "hinge": simpo,\n'),
    ),
    "another threshold of the regime": (
        {"regime"}, ("coevolve/config/report.py", STEPS, f"{STEPS}    looks: Positive = 1\n"),
    ),
    "a default that no suite overrides": (
        {"pairs", "steps"},
        ("coevolve/methods/settings.py", "drop_conflicts: bool = False", "drop_conflicts: bool = True"),
    ),
    "validators, messages and what a suite overrides": (
        set(),
        ("coevolve/train/settings.py", "if self.batch_size % min(", "if 1 and self.batch_size % min("),
        ("coevolve/settings/yaml_files.py", "a config file holds a mapping", "a file of settings holds a mapping"),
        ("coevolve/methods/pairing.py", "does not pair whole trajectories", "pairs no whole trajectories"),
        ("coevolve/rollout.py", "    samples: Positive = 1\n", "    samples: Positive = 2\n"),
        ("coevolve/cli/planning.py", "estimated, not measured", "estimated"),
        ("coevolve/watch/status.py", "()} jobs are done", "()} jobs have ended"),
        ("coevolve/pipeline/stages/train.py", "All epochs over the pairs,", "The epochs over the pairs,"),
    ),
    "what only the plan reads in a stage's module, and the modules that it needs for it": (
        set(),
        ("coevolve/pipeline/stages/train.py", "configured.dpo.epochs * (1 +", "configured.dpo.epochs * (1.0 +"),
        ("coevolve/pipeline/stages/train.py", 'help="Train the failure agent', 'help="Train a failure agent'),
        ("coevolve/pipeline/work.py", "expected.failures**2 / 2", "expected.failures**2 / 3"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_reaches_the_stages_that_it_touches(repo, before, edit):
    expected, *edits = EDITS[edit]
    assert stages(changed(repo, before, *edits)) == expected


@pytest.mark.parametrize("definition", CODE)
def test_a_definition_reaches_the_stages_that_use_it(reach, definition):
    assert stages(reaching(reach, definition)) == CODE[definition]


@pytest.mark.parametrize(
    "definition", ["records.tables.Estimate", "report.estimation.estimate", "agent_data.stages.signals.find_signals"]
)
def test_reports_reach_products_and_the_second_paper_its_own_stages(reach, definition):
    reached = stages(reaching(reach, definition))
    assert reached and reached <= PRODUCTS | {"signals"}
    assert ("signals" in reached) == definition.startswith("agent_data")


def test_declared_looks_reach_products_alone(repo, before):
    jobs = changed(repo, before, ("configs/suites/smoke.yaml", "\nsuite: smoke\n", "\nsuite: smoke\nlooks: [1, 2]\n"))
    assert {"differences", "summary", "verdicts"} <= stages(jobs) <= PRODUCTS


def test_an_engine_reaches_the_jobs_that_it_plays(reach):
    """`paper` plays with vLLM. PPO and GRPO sample from the policy that they train, as the built-in engine does."""
    built_in = reaching(reach, "policies.kv_cache.CachedDecoder")
    vllm = reaching(reach, "policies.vllm.player")
    assert stages(built_in) == {"rollout", "evaluate", "steps", "ppo", "grpo", "grpo_round"}
    assert {stage for suite, stage, _ in built_in if suite == "paper"} == {"ppo"}
    assert stages(vllm) == {"rollout", "evaluate"} and {suite for suite, _, _ in vllm} == {"paper"}


def test_a_rule_of_the_protocol_reaches_what_plays(reach):
    reached = stages(reaching(reach, "config.suite.quirks"))
    assert {"data", "rollout", "evaluate", "steps", "ppo", "grpo_round", "explore_tasks"} <= reached
    assert not {"sft", "train", "pairs", "reference", "pretrain"} & reached


def test_an_environment_reaches_its_own_jobs(reach):
    jobs = reaching(reach, "envs.webshop.session.split_action")
    assert {wildcards.get("env") for _, _, wildcards in jobs} == {"webshop"}
    assert {"data", "rollout", "evaluate"} <= stages(jobs)
    assert not {"sft", "train", "pairs", "reference", "pretrain"} & stages(jobs)


def test_few_definitions_are_reached_by_most_stages():
    """None of them is about one method, product or environment; sections and their fields are not in digests."""
    counts = Counter(name for stage in STAGES.values() for name in code_digest.reachable(f"{stage.module}.run"))
    common = {name for name, count in counts.items() if 2 * count > len(STAGES) and not code_digest.is_section(name)}
    rooms = {name.split(".")[1] for name in common if not {"section", "settings"} & {*name.split(".")[2:3]}}
    assert rooms <= {"config", "errors", "seeds", "records", "storage", "pipeline", "settings"}, common
