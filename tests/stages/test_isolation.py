"""Every stage reads its declared inputs and nothing else: alone in a folder with them, it gives the same bytes."""

import contextlib
import json
import shutil
from pathlib import Path

import pytest
from command_line import exit_status
from small_run import make, run_job

from coevolve.config.loading import load_suite
from coevolve.config.machine import Shards
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.registry import STAGES
from coevolve.pipeline.stage import files_of

#: What the suite `glance` leaves out: other ways to learn, a rollout in parts, an ablation.
MORE = """
extends: glance.yaml
suite: glance
methods: [rft, hpl, ppo, grpo, agent_data, coevolve_agent_data]
ppo: {epochs: 1, rollouts: 4, passes: 1, batch_size: 4, micro_batch: 2}
grpo: {epochs: 1, batch_size: 4, micro_batch: 2, group: 2}
steps: {samples: 1, every: 3}
task_evolution: {steps: 1, initial_tasks: 3, initial_fragments: 8, new_tasks: 2, fragments: 4, turns: 6, actions: 4}
recipes: {agent_data: {iterations: 2}, coevolve_agent_data: {iterations: 1}}
ablations: {sides: {label: Two methods, source: a test, methods: [sft, eto, coevolve]}}
"""
#: Inputs that stand for their folder: a policy, a model of the hub, a prepared shop.
FOLDERS = ("policy.json", "manifest.json", "meta.json")
FIGURE = "results/glance/paper/figure3/figure3.json"
#: Stages whose result depends on no file: they fetch, or they ask a simulator.
WITHOUT_INPUTS = {"download", "snapshot", "gold"}
#: Stages that are run alone elsewhere: tests/train/test_gguf_model.py.
ELSEWHERE = {"convert"}


def plan(made, name):
    with contextlib.chdir(made):
        shards = Shards(rollout=1, evaluate=2 if name == "more" else 1)
        return Plan(load_suite(f"configs/{name}.yaml"), shards=shards)


@pytest.fixture(scope="module")
def made(made, tmp_path_factory):
    """A copy of the finished suite, to which this module adds results."""
    return shutil.copytree(made, tmp_path_factory.mktemp("isolation") / "run", symlinks=True)


@pytest.fixture(scope="module")
def finished(made):
    """A job of a stage in `made`, and the plan that it is of."""
    (made / "configs/more.yaml").write_text(MORE)
    plans = {name: plan(made, name) for name in ("glance", "more")}

    def of(stage):
        if stage == "ablation":
            return plans["more"], plans["more"].ablation("sides")
        if stage == "task_growth":
            return plans["more"], plans["more"].products[stage]
        return next((each, job) for each in plans.values() for job in each.jobs() if job.stage.name == stage)

    return of


@pytest.mark.parametrize("stage", [name for name in STAGES if name not in WITHOUT_INPUTS | ELSEWHERE])
def test_a_stage_reads_its_declared_inputs_alone(made, finished, stage, tmp_path, monkeypatch):
    suite, job = finished(stage)
    folder = Path(job.folder)
    with contextlib.chdir(made):
        make(suite, job.files[0])
    for path in files_of(job.inputs):
        copy(made, Path(path), tmp_path)
    monkeypatch.chdir(tmp_path)
    run_job(suite, job, out=folder)
    for file in job.names:
        assert content(tmp_path / folder / file) == content(made / folder / file), file


def copy(made, path, target):
    """An input at its place below `target`; nothing of its neighbours, unless it stands for its folder."""
    (target / path.parent).mkdir(parents=True, exist_ok=True)
    if path.name in FOLDERS:
        shutil.copytree(made / path.parent, target / path.parent, dirs_exist_ok=True)
    else:
        shutil.copy(made / path, target / path)


def content(path):
    """A file's bytes; episodes without the time that they took."""
    if path.name not in ("episodes.jsonl", "explored.jsonl"):
        return path.read_bytes()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("seconds", "attempts")} for line in lines]


def test_results_are_those_of_the_named_folder(made, tmp_path, monkeypatch):
    """A figure of results that lie elsewhere; one of their records was changed."""
    suite = plan(made, "glance")
    records = suite.products["figure3"].inputs["records"]
    for path in {file.path for file in records}:
        copied = tmp_path / "elsewhere" / Path(path).relative_to("results")
        copied.parent.mkdir(parents=True)
        shutil.copy(made / path, copied)
    monkeypatch.chdir(tmp_path)
    last = next(file.path for file in records if (file.method, file.iteration) == ("coevolve", 1))
    changed = Path("elsewhere", Path(last).relative_to("results"))
    lines = [json.loads(line) | {"reward": 0.125} for line in changed.read_text().splitlines()]
    changed.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    command = ["stage", "figure3", "--suite", str(made / "configs/glance.yaml"), "--out", "figure3"]
    assert exit_status(*command, "--root", "elsewhere") == 0
    drawn, before = (json.loads(Path(path).read_text()) for path in ("figure3/figure3.json", made / FIGURE))
    mine, old = ({(p["method"], p["iteration"]): p["estimate"] for p in data["points"]} for data in (drawn, before))
    assert mine["coevolve", 1]["mean"] == pytest.approx(0.125)
    assert {key for key in mine if mine[key] != old[key]} == {("coevolve", 1)}
