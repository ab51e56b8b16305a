"""A stage is declared once: nothing else knows stages by name, and each product is a rule with inputs of its own."""

import ast
import importlib
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from coevolve.config.loading import load_suite
from coevolve.config.machine import job_resources
from coevolve.export.site_documents import site_documents
from coevolve.pipeline import product_runs
from coevolve.pipeline.machine import load_machine
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.registry import ENDS, STAGES
from coevolve.pipeline.targets import targets
from coevolve.storage import code_digest

PRODUCTS = ENDS
#: Modules of the pipeline that run in jobs.
OF_JOBS = {"coevolve.pipeline.job", "coevolve.pipeline.accounting"}


@pytest.fixture(scope="module")
def plan(root):
    return Plan(load_suite(root / "configs/suites/smoke.yaml"))


def strings(node):
    """All strings of an expression, those in tuples, lists and sets too."""
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def holds_stage(node):
    """Whether an expression is a stage's name, by what it is called: `stage`, `job.stage`, `stage.name`."""
    if isinstance(node, ast.Attribute):
        return "stage" in node.attr.lower() or (node.attr == "name" and holds_stage(node.value))
    return isinstance(node, ast.Name) and "stage" in node.id.lower()


def named_stages(tree):
    """Places where a stage is told apart by its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(holds_stage, sides)) and any(strings(side) & STAGES.keys() for side in sides):
                yield node.lineno
        if isinstance(node, ast.Subscript) and holds_stage(node.value) and strings(node.slice) & STAGES.keys():
            yield node.lineno
        if isinstance(node, ast.match_case) and strings(node.pattern) & STAGES.keys():
            yield node.pattern.lineno


def test_no_module_tells_stages_apart_by_name(root):
    modules = [*(root / "coevolve").rglob("*.py")]
    found = {str(path): list(named_stages(ast.parse(path.read_text()))) for path in modules}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_declarations_are_whole(root):
    for name, stage in STAGES.items():
        assert stage.name == name and stage.help.endswith(".")
    several = {"sft", "rft_train", "train", "pretrain", "ppo", "grpo", "grpo_round"}
    assert {name for name, stage in STAGES.items() if stage.launchable} == several
    modules = {path.stem for path in (root / "coevolve").glob("*/stages/*.py")} - {"__init__"}
    products = {name: stage for name, stage in STAGES.items() if stage.function != "run"}
    assert all(hasattr(importlib.import_module(stage.module), f"write_{name}") for name, stage in products.items())
    written = {name for name in vars(product_runs) if name.startswith("write_")}
    assert written == {f"write_{name}" for name in products}, "a function is a product"
    assert modules == {name for name, stage in STAGES.items() if stage.function == "run"}, "other stages are modules"


@pytest.mark.parametrize("stage", STAGES)
def test_no_stage_reaches_the_declarations(stage):
    """Its code digest would cover them, and adding a stage would rerun all jobs."""
    reached = code_digest.reachable(f"{STAGES[stage].module}.{STAGES[stage].function}")
    assert not {name for name in reached if name.rpartition(".")[2] in ("STAGE", "STAGES", "inputs", "cost")}
    places = {code_digest.split(name)[0] for name in reached if name.startswith("coevolve.pipeline.")}
    of_products = {"coevolve.pipeline.product_runs", "coevolve.pipeline.accounting"}
    planning = {name for name in places - OF_JOBS - of_products if not name.startswith("coevolve.pipeline.stages")}
    assert planning == {"coevolve.pipeline.branch"}, "which reads a name"
    others = {name.rpartition(".")[2] for name in places} & STAGES.keys() - {stage}
    assert others == {"rft_train": {"sft"}, "steps": {"pairs"}}.get(stage, set()), "the code of another stage"


def test_adding_a_stage_reruns_no_job(plan, monkeypatch):
    before = [(job.key, plan.fingerprint(job), job.inputs) for job in plan.jobs()]
    added = replace(STAGES["untrained"], help="A new one.", reads=("models",), files=("new.json",))
    monkeypatch.setitem(STAGES, "new", added)
    again = Plan(plan.suite)
    made = again.paper.add(added, "new/tiny", {}, {"model": "tiny"})
    assert again.job("results/smoke/new/tiny/new.json") is made
    assert [(job.key, again.fingerprint(job), job.inputs) for job in again.jobs()] == before


def products_behind(plan, product):
    """The products that a product is made of, itself included."""
    return {job.stage.name for job in plan.jobs(plan.products[product].files)} & {*PRODUCTS}


def test_a_product_is_made_alone(plan):
    alone = set(PRODUCTS) - {"summary", "page"}
    assert {product: products_behind(plan, product) for product in alone} == {product: {product} for product in alone}
    assert products_behind(plan, "summary") == {"summary", "differences", "figure3"}
    assert products_behind(plan, "page") == set(PRODUCTS)


def test_every_product_is_a_target_and_a_full_run_makes_them_all(plan):
    listed = {target.name: target for target in targets(plan)}
    assert list(listed)[: len(PRODUCTS)] == PRODUCTS
    assert sorted(path for product in PRODUCTS for path in listed[product].files()) == sorted(plan.targets())


def test_the_growth_of_pools_is_a_target_and_a_document_of_suites_with_pools(root, plan, tmp_path):
    with_pools = Plan(load_suite(root / "configs/suites/smoke_agent_data.yaml"), root=tmp_path.as_posix())
    listed = {target.name: target for target in targets(with_pools)}
    assert "task_growth" in listed and "task_growth" not in {target.name for target in targets(plan)}
    for path in map(Path, listed["task_growth"].files()):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (document,) = site_documents(with_pools)
    assert document.title == "Task growth" and list(map(str, document.paths)) == list(listed["task_growth"].files())


def test_a_machine_names_all_products_at_once(root):
    machine = load_machine(root / "configs/machines/h100.yaml")
    assert all(job_resources(machine, product).local for product in PRODUCTS)


def test_snakemake_and_a_person_name_each_job_alike(plan):
    """Snakemake's only wildcard, which products lack, and the wildcards of `coevolve stage --on`, each name one job."""
    for job in plan.jobs():
        named = {} if job.stage.name in PRODUCTS else {"job": job.name}
        assert plan.of_rule(job.stage.name, named) is job
        assert plan.require(job.stage.name, job.wildcards) is job


def test_all_jobs_of_a_stage_take_the_same_wildcards(plan):
    taken = defaultdict[str, set[frozenset[str]]](set)
    for job in plan.jobs():
        taken[job.stage.name].add(frozenset(job.wildcards))
    assert {stage: len(names) for stage, names in taken.items() if len(names) > 1} == {}


LIGHT = """
import importlib, sys
import coevolve.cli.stage, coevolve.pipeline.run_job
heavy = ("torch", "transformers", "accelerate", "trl", "openai", "pandas", "scipy", "matplotlib")
for name in sys.argv[1:]:
    importlib.import_module(name)
sys.exit(", ".join(name for name in heavy if name in sys.modules) or 0)
"""
WITHOUT_A_MODEL = ("ablation", "data", "download", "gold", "pairs", "prepare", "select")


def test_stages_without_a_model_load_no_torch_and_draw_only_where_a_figure_is_drawn():
    modules = {STAGES[name].module for name in (*PRODUCTS, *WITHOUT_A_MODEL)}
    command = [sys.executable, "-c", LIGHT, *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"loaded: {done.stderr}"
