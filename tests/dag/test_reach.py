"""A change reaches what it touches: edits of a copy of the kit, against the jobs whose fingerprints change.

A job whose fingerprint changes runs again, and after it what reads its result.
"""

import ast
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


def with_a_line(repo, name):
    """An edit that adds a line of code at the end of a file."""
    last = (repo / name).read_text().rstrip().rsplit("\n", 1)[-1]
    return name, f"\n{last}\n", f"\n{last}\n\nANOTHER = 1\n"


#: Files with another line of code, and the stages that run it.
CODE = {
    "coevolve/train/losses.py": {"train"},
    "coevolve/train/likelihood.py": {"train", "pretrain", "sft", "rft_train"},
    "coevolve/methods/pairing.py": {"pairs", "steps"},
    "coevolve/methods/rejection_sampling.py": {"select"},
    "coevolve/methods/task_evolution/prompts.py": {"explore_tasks"},
    "coevolve/train/ppo.py": {"ppo"},
    "coevolve/train/grpo.py": {"grpo", "grpo_round"},
    "coevolve/report/regime.py": PRODUCTS,
    "coevolve/report/html.py": {"page"},
    "coevolve/report/page_template.py": {"page"},
    "coevolve/config/derived/training.py": {"train", *PRODUCTS},
    "coevolve/config/derived/sizes.py": PRODUCTS,
}
STEPS = "    failure_steps: Positive\n"
#: Other edits (file, text and replacement), and the stages that they reach.
EDITS = {
    "a new objective": (
        {"train"},
        ("coevolve/config/names.py", '"ipo", "kto"]', '"ipo", "kto", "hinge"]'),
        ("coevolve/config/sections.py", '"simpo": ("margin",),', '"simpo": ("margin",), "hinge": ("margin",),'),
        ("coevolve/train/losses.py", '    "kto": kto,\n', '    "kto": kto,\n    "hinge": simpo,\n'),
    ),
    "a new pair kind": (
        {"pairs", "steps"},
        ("coevolve/config/names.py", "    EXPERT_STEP =", '    TWO_TARGETS = "target_target"\n    EXPERT_STEP ='),
        ("coevolve/methods/pairing.py", "\ndef within_agents", "\nMORE = 1\n\n\ndef within_agents"),
    ),
    "another threshold of the regime": (
        {"regime"}, ("coevolve/config/sections.py", STEPS, f"{STEPS}    looks: Positive = 1\n"),
    ),
    "a default that no suite overrides": (
        {"pairs", "steps"},
        (
            "coevolve/config/sections.py",
            "drop_conflicts: bool = Field(default=False, exclude_if=operator.not_)", "drop_conflicts: bool = True",
        ),
    ),
    "validators, messages and what a suite overrides": (
        set(),
        ("coevolve/config/sections.py", "if self.batch_size % min(", "if 1 and self.batch_size % min("),
        ("coevolve/config/yaml_files.py", "a config file holds a mapping", "a file of settings holds a mapping"),
        ("coevolve/config/validation.py", "is missing; add it.", "is missing; give it."),
        ("coevolve/config/baselines.py", "    samples: Positive = 1\n", "    samples: Positive = 2\n"),
        ("coevolve/cli/planning.py", "estimated, not measured", "estimated"),
        ("coevolve/follow/status.py", "()} jobs are done", "()} jobs have ended"),
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
    expected, *edits = EDITS[edit] if edit in EDITS else (CODE[edit], with_a_line(repo, edit))
    assert stages(changed(repo, before, *edits)) == expected


@pytest.mark.parametrize(
    "file",
    ["records/tables.py", "report/stats.py", "methods/task_evolution/signals.py"]
    + [f"config/derived/{name}.py" for name in ("methods", "recipes")],
)
def test_reports_reach_products_and_the_second_paper_its_own_stages(repo, before, file):
    reached = stages(changed(repo, before, with_a_line(repo, f"coevolve/{file}")))
    assert reached and reached <= PRODUCTS | {"signals"}
    assert ("signals" in reached) == file.startswith("methods")


def test_declared_looks_reach_products_alone(repo, before):
    jobs = changed(repo, before, ("configs/suites/smoke.yaml", "\nsuite: smoke\n", "\nsuite: smoke\nlooks: [1, 2]\n"))
    assert {"differences", "summary", "verdicts"} <= stages(jobs) <= PRODUCTS


def test_an_engine_reaches_the_jobs_that_it_plays(repo, before):
    """`paper` plays with vLLM. PPO and GRPO sample from the policy that they train, as the built-in engine does."""
    built_in = changed(repo, before, with_a_line(repo, "coevolve/policies/kv_cache.py"))
    vllm = changed(repo, before, with_a_line(repo, "coevolve/policies/vllm.py"))
    assert stages(built_in) == {"rollout", "evaluate", "steps", "ppo", "grpo", "grpo_round"}
    assert {stage for suite, stage, _ in built_in if suite == "paper"} == {"ppo"}
    assert stages(vllm) == {"rollout", "evaluate"} and {suite for suite, _, _ in vllm} == {"paper"}


def test_a_rule_of_the_protocol_reaches_what_plays(repo, before):
    reached = stages(changed(repo, before, with_a_line(repo, "coevolve/config/derived/protocol.py")))
    assert {"data", "rollout", "evaluate", "steps", "ppo", "grpo_round", "explore_tasks"} <= reached
    assert not {"sft", "train", "pairs", "reference", "pretrain"} & reached


def test_an_environment_reaches_its_own_jobs(repo, before):
    jobs = changed(repo, before, with_a_line(repo, "coevolve/envs/webshop/session.py"))
    assert {wildcards.get("env") for _, _, wildcards in jobs} == {"webshop"}
    assert {"data", "rollout", "evaluate"} <= stages(jobs)
    assert not {"sft", "train", "pairs", "reference", "pretrain"} & stages(jobs)


def file_of(root: Path, module: str) -> Path | None:
    path = root / module.replace(".", "/")
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)


def test_few_modules_are_reached_by_most_stages(root):
    """None of them is about one method, product or environment; their packages hold no code."""
    counts = Counter(module for stage in STAGES.values() for module in code_digest.reachable(stage.module))
    common = {module: file_of(root, module) for module, count in counts.items() if 2 * count > len(STAGES)}
    held = {module: path for module, path in common.items() if path.name != "__init__.py"}
    assert len(held) <= 8 and sum(len(path.read_text().splitlines()) for path in held.values()) <= 700
    assert {module.split(".")[1] for module in held} <= {"errors", "seeds", "records", "storage", "pipeline"}
    packages = [path for module, path in common.items() if module not in held and module != "coevolve"]
    assert packages and all(len(ast.parse(path.read_text()).body) == 1 for path in packages)
