"""A question's own tables, of a suite with two models: from records on disk to cells that can be asked for."""

import dataclasses
import json
from pathlib import Path

import pytest
from builders import record
from small_run import job_of

from coevolve.config.loading import load_suite
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.product_runs import write_ablation
from coevolve.records.evaluation import EvalRecord
from coevolve.records.pairs import PairingSummary, TrajectoryCount
from coevolve.report import why
from coevolve.storage import jsonl
from coevolve.storage.files import write_bytes

OTHER = "models.larger={label: a larger one, context: 4096, path: checkpoints/larger, parameters: 1.0e+9}"
NONE = TrajectoryCount(total=0, paired=0, dropped=0, not_used=0)
REWARDS = {("tiny", "sft"): 0.2, ("tiny", "eto"): 0.3, ("larger", "sft"): 0.4, ("larger", "eto"): 0.6}


def of(number, split, model, method):
    """The record of a task, with the reward of its model and method."""
    about = {"environment": "a shop", "success": False, "trajectory_id": f"{model}-{method}-{number}"}
    return record(f"t{number}", REWARDS.get((model, method), 0.5), split=split, **about)


@pytest.fixture
def job(root, tmp_path, monkeypatch):
    """The job of the base models' table, everything it reads made up."""
    suite = load_suite(root / "configs/suites/smoke.yaml", [OTHER])
    suite = suite.model_copy(update={"envs": {"webshop": suite.envs["webshop"]}})
    plan = Plan(suite)
    planned = plan.ablation("base_models")
    inputs = planned.inputs
    monkeypatch.chdir(tmp_path)
    methods = suite.ablations["base_models"].methods
    for method in reversed(methods):  # SFT, whose records the others begin with, comes last
        for file in plan.records([method], every_model=True):
            records = [of(n, split, file.model, method) for split in suite.envs[file.env].splits for n in range(4)]
            jsonl.write(Path(file.path), records)
    for file in plan.summaries(methods, every_model=True):
        write_bytes(
            Path(file.path), PairingSummary(kinds={}, without_kind={}, trajectories=NONE, empty=()).to_json().encode()
        )
    for file in inputs["drops"]:
        jsonl.write(Path(file.path), [])
    return job_of(plan, planned, tmp_path / "work", inputs | {"claims": str(root / inputs["claims"])})


def test_each_model_has_its_tables_and_a_cell_is_asked_for_by_its_model(job):
    out = Path("results/smoke/ablations/base_models")
    write_ablation(job, out)
    tables = json.loads((out / "table.json").read_text())
    assert [(table["model"], table["unit"]) for table in tables] == [
        (job.suite.models[model].label, unit)
        for model in ("tiny", "larger")
        for unit in ("average reward x 100", "success rate in per cent")
    ]
    cells = [(table["model"], cell) for table in tables[::2] for cell in table["cells"] if cell["column"] == "webshop"]
    means = {(model, cell["row"]): cell["estimate"]["mean"] for model, cell in cells}
    labels = {model: section.label for model, section in job.suite.models.items()}
    for (model, method), reward in REWARDS.items():
        assert means[labels[model], method] == pytest.approx(100 * reward)
    summary = (out / "summary.md").read_text()
    assert summary.startswith("Model: tiny Llama") and summary.count("Model: ") == 2
    cells = why.cells(Path("results/smoke"))
    assert len({cell.name for cell in cells}) == len(cells)
    assert why.find(cells, "ETO WebShop").cell.estimate.mean == pytest.approx(30)
    assert why.find(cells, "ETO WebShop larger").cell.estimate.mean == pytest.approx(60)


def test_a_split_that_the_papers_table_lacks_has_its_label(job):
    section = job.suite.envs["webshop"].model_copy(update={"splits": ["development"]})
    suite = job.suite.model_copy(update={"envs": {"webshop": section}})
    for path in job.inputs["records"]:
        records = [each.model_copy(update={"split": "development"}) for each in jsonl.read(path, EvalRecord)]
        jsonl.write(path, records)
    write_ablation(dataclasses.replace(job, suite=suite), Path("results/smoke/ablations/base_models"))
    tables = json.loads(Path("results/smoke/ablations/base_models/table.json").read_text())
    assert [table["columns"] for table in tables] == [{"webshop development": "WebShop development"}] * 4


def test_a_report_is_about_the_first_model(root):
    plan = Plan(load_suite(root / "configs/suites/smoke.yaml", [OTHER]))
    assert {file.model for file in plan.products["table1"].inputs["records"]} == {"tiny"}
    assert {file.model for file in plan.ablation("base_models").inputs["records"]} == {"tiny", "larger"}


def test_the_papers_base_models_are_planned(root):
    plan = Plan(load_suite(root / "configs/suites/base_models.yaml"))
    targets = [f"{plan.home}/ablations/base_models/table.json"]
    trained = {job.wildcards["model"] for job in plan.jobs(targets) if job.stage.name == "train"}
    assert trained == {"llama2-7b-chat", "llama2-13b-chat", "qwen3-4b"}
