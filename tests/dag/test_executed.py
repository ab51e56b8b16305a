"""No stale result by a wrong exclusion: whatever a job executes of the package is in the digest of its code."""

import ast
import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import copy_of, environment

from coevolve.config.loading import load_suite
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.registry import STAGES
from coevolve.storage import code_digest

pytestmark = pytest.mark.dag
RUN = "notes = run(job, folder)"
WATCHED = "from coevolve.executed import watched\n\n        notes = watched(run, job, folder)"
#: Stages that another suite's result, or a download, stands for; `gold` starts ScienceWorld.
ELSEWHERE = {"download", "snapshot", "convert", "gold", "shard", "ablation"}
SECOND_PAPER = {"explore_tasks", "validate_tasks", "signals", "grpo_round", "pool_experts", "task_growth"}
#: What the text of a line in the log is made with.
LOGGED = {"coevolve.escaping.Formatter", "coevolve.escaping.terminal"}


@pytest.fixture(scope="module")
def repo(root, tmp_path_factory):
    """A copy of the kit whose jobs note what they execute; all else is as it is."""
    folder = copy_of(root, tmp_path_factory.mktemp("watched"))
    (folder / "coevolve/executed.py").write_text((root / "tests/dag/executed.py").read_text())
    for name in ("nano", "kin_methods", "kin_agent_data"):
        shutil.copy(root / f"tests/dag/{name}.yaml", folder / "configs")
    code = folder / "coevolve/pipeline/run_job.py"
    assert code.read_text().count(RUN) == 1
    code.write_text(code.read_text().replace(RUN, WATCHED))
    return folder


def watched(repo: Path, suite: str, *targets: str) -> tuple[set[str], set[str]]:
    """The stages that a run of a suite executes, and what they execute that their digest does not know."""
    shutil.rmtree(repo / "executed", ignore_errors=True)
    command = [sys.executable, "-m", "snakemake", "--profile", "smoke", "--config", f"suite={suite}", "--", *targets]
    done = subprocess.run(command, cwd=repo, env=environment(repo), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    here = Path.cwd()
    os.chdir(repo)
    try:
        plan = Plan(load_suite(suite))
        notes = [json.loads(path.read_text()) for path in Path("executed").glob("*.json")]
        unknown = {each for note in notes for each in _unknown(plan, note)}
    finally:
        os.chdir(here)
    return {note["stage"] for note in notes}, unknown


def _unknown(plan: Plan, note: dict) -> set[str]:
    job = plan.require(note["stage"], note["wildcards"])
    reached = code_digest.reachable(*plan.starts(job))
    executed = {name for file, line in note["called"] if (name := definition(file, line))}
    return {f"{note['stage']}: {name}" for name in executed - reached.keys() - LOGGED}


@functools.cache
def definition(file: str, line: int) -> str | None:
    """The definition that a function is part of, by its place; None for a validator, whose values are digested."""
    module = ".".join(["coevolve", *Path(file).with_suffix("").parts]).removesuffix(".__init__")
    node = _at(ast.parse((code_digest.PACKAGE / file).read_text()).body, line)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return f"{module}.{ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])}"
    if isinstance(node, ast.ClassDef) and code_digest.is_section(f"{module}.{node.name}"):
        inner = _at(node.body, line)
        return None if inner is None or code_digest.is_value(inner) else f"{module}.{node.name}"
    return f"{module}.{node.name}" if isinstance(node, ast.FunctionDef | ast.ClassDef) else None


def _at(body: list[ast.stmt], line: int) -> ast.stmt | None:
    """The statement that a line belongs to, decorators included."""
    for node in body:
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        if first <= line <= (node.end_lineno or 0):
            return node
    return None


def test_what_the_jobs_of_the_first_paper_execute_is_in_their_digests(repo):
    stages, unknown = watched(repo, "kin_methods")
    assert stages == STAGES.keys() - SECOND_PAPER - ELSEWHERE and not unknown


def test_what_the_jobs_of_the_second_paper_execute_is_in_their_digests(repo):
    stages, unknown = watched(repo, "kin_agent_data", "task_growth", "method_agent_data", "method_coevolve_agent_data")
    assert stages >= SECOND_PAPER and not unknown


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["smoke", "smoke_methods", "smoke_agent_data"])
def test_what_the_jobs_of_a_suite_execute_is_in_their_digests(repo, suite):
    assert not watched(repo, suite)[1]
