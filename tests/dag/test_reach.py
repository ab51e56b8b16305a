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


def redefined(repo, definition):
    """An edit that gives a definition (`FILE:NAME`) more code, at the end of its file."""
    name, _, defined = definition.partition(":")
    last = (repo / name).read_text().rstrip().rsplit("\n", 1)[-1]
    return name, f"\n{last}\n", f"\n{last}\n\n{defined} = {defined}\n"


#: Definitions with more code, and the stages that reach them.
CODE = {
    "coevolve/train/losses.py:pair_losses": {"train"},
    "coevolve/train/collate.py:trajectory_logps": {"train", "pretrain", "sft", "rft_train"},
    "coevolve/train/collate.py:sft_losses": {"pretrain", "sft", "rft_train"},
    "coevolve/methods/pairing.py:preference_pair": {"pairs", "steps"},
    "coevolve/methods/rejection_sampling.py:select": {"select"},
    "coevolve/agent_data/prompts.py:read_draft": {"explore_tasks"},
    "coevolve/train/ppo.py:gae": {"ppo"},
    "coevolve/train/grpo.py:completions": {"grpo", "grpo_round"},
    "coevolve/report/regime.py:markdown": {"regime"},
    "coevolve/report/html.py:report": {"page"},
    "coevolve/train/settings.py:per_iteration": {"train", "failures", "page"},
    "coevolve/config/models.py:training_memory": set(),
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


@pytest.mark.parametrize("edit", [*CODE, *EDITS])
def test_an_edit_reaches_the_stages_that_it_touches(repo, before, edit):
    expected, *edits = EDITS[edit] if edit in EDITS else (CODE[edit], redefined(repo, edit))
    assert stages(changed(repo, before, *edits)) == expected


@pytest.mark.parametrize(
    "definition",
    ["records/tables.py:Estimate", "report/stats.py:spread", "agent_data/stages/signals.py:find_signals"],
)
def test_reports_reach_products_and_the_second_paper_its_own_stages(repo, before, definition):
    reached = stages(changed(repo, before, redefined(repo, f"coevolve/{definition}")))
    assert reached and reached <= PRODUCTS | {"signals"}
    assert ("signals" in reached) == definition.startswith("agent_data")


def test_declared_looks_reach_products_alone(repo, before):
    jobs = changed(repo, before, ("configs/suites/smoke.yaml", "\nsuite: smoke\n", "\nsuite: smoke\nlooks: [1, 2]\n"))
    assert {"differences", "summary", "verdicts"} <= stages(jobs) <= PRODUCTS


def test_an_engine_reaches_the_jobs_that_it_plays(repo, before):
    """`paper` plays with vLLM. PPO and GRPO sample from the policy that they train, as the built-in engine does."""
    built_in = changed(repo, before, redefined(repo, "coevolve/policies/kv_cache.py:CachedDecoder"))
    vllm = changed(repo, before, redefined(repo, "coevolve/policies/vllm.py:player"))
    assert stages(built_in) == {"rollout", "evaluate", "steps", "ppo", "grpo", "grpo_round"}
    assert {stage for suite, stage, _ in built_in if suite == "paper"} == {"ppo"}
    assert stages(vllm) == {"rollout", "evaluate"} and {suite for suite, _, _ in vllm} == {"paper"}


def test_a_rule_of_the_protocol_reaches_what_plays(repo, before):
    reached = stages(changed(repo, before, redefined(repo, "coevolve/config/suite.py:quirks")))
    assert {"data", "rollout", "evaluate", "steps", "ppo", "grpo_round", "explore_tasks"} <= reached
    assert not {"sft", "train", "pairs", "reference", "pretrain"} & reached


def test_an_environment_reaches_its_own_jobs(repo, before):
    jobs = changed(repo, before, redefined(repo, "coevolve/envs/webshop/session.py:split_action"))
    assert {wildcards.get("env") for _, _, wildcards in jobs} == {"webshop"}
    assert {"data", "rollout", "evaluate"} <= stages(jobs)
    assert not {"sft", "train", "pairs", "reference", "pretrain"} & stages(jobs)


def test_few_definitions_are_reached_by_most_stages():
    """None of them is about one method, product or environment."""
    counts = Counter(name for stage in STAGES.values() for name in code_digest.reachable(f"{stage.module}.run"))
    common = {name.split(".")[1] for name, count in counts.items() if 2 * count > len(STAGES)}
    assert common <= {"config", "errors", "seeds", "records", "storage", "pipeline"}
