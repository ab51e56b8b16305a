"""Every stage reads its declared inputs and nothing else: alone in a folder with them, it gives the same bytes."""

import contextlib
import json
import shutil
from pathlib import Path

import pytest
from small_run import make, run_job

from coevolve import cli
from coevolve.config.loading import load_suite
from coevolve.config.machine import Shards
from coevolve.dag.plan import Plan
from coevolve.dag.rules import STAGES

#: What the suite `glance` leaves out: other ways to learn, a rollout in parts, an ablation.
MORE = """
extends: glance.yaml
suite: glance
methods: [rft, ipr, ppo, grpo, agent_data, coevolve_agent_data]
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
    """A finished job of a stage in `made`: the suite's name and plan, and the job."""
    (made / "configs/more.yaml").write_text(MORE)
    plans = {name: plan(made, name) for name in ("glance", "more")}

    def of(stage):
        if stage == "ablation":
            return "more", plans["more"], (stage, {"ablation": "sides"})
        if stage == "task_growth":
            return "more", plans["more"], (stage, {})
        return next((name, each, job) for name, each in plans.items() for job in each.jobs() if job[0] == stage)

    return of


@pytest.mark.parametrize("stage", [name for name in STAGES if name not in WITHOUT_INPUTS | ELSEWHERE])
def test_a_stage_reads_its_declared_inputs_alone(made, finished, stage, tmp_path, monkeypatch):
    name, suite, job = finished(stage)
    folder = Path(suite.folder(*job))
    with contextlib.chdir(made):
        make(suite, f"{folder}/{STAGES[stage].files[0]}", name)
    for paths in suite.inputs(*job).values():
        for path in [paths] if isinstance(paths, str) else paths:
            copy(made, Path(path), tmp_path)
    monkeypatch.chdir(tmp_path)
    run_job(suite, job, made / f"configs/{name}.yaml")
    for file in STAGES[stage].files:
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


@pytest.fixture
def figure(made, tmp_path, monkeypatch):
    """The command of Figure 3, with its records where nobody expects them."""
    suite = plan(made, "glance")
    monkeypatch.chdir(tmp_path)
    records = [Path(path) for path in suite.inputs("figure3", {})["records"]]
    for path in records:
        copied = tmp_path / "elsewhere" / suite.tail(path.as_posix())
        copied.parent.mkdir(parents=True)
        shutil.copy(made / path, copied)
    command = ["stage", "figure3", "--suite", str(made / "configs/glance.yaml"), "--out", "figure3"]
    return command, [f"records={path}" for path in sorted((tmp_path / "elsewhere").rglob("*.jsonl"))]


def run(command, *records):
    with pytest.raises(SystemExit) as ended:
        cli.main([*command, *records])
    return ended.value.code


def test_records_are_those_that_were_given_wherever_they_lie(made, figure):
    command, records = figure
    changed = Path(next(r for r in records if "coevolve" in r).partition("=")[2])
    lines = [json.loads(line) | {"reward": 0.125} for line in changed.read_text().splitlines()]
    changed.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert run(command, *records) == 0
    drawn, before = (json.loads(Path(path).read_text()) for path in ("figure3/figure3.json", made / FIGURE))
    mine, old = ({(p["method"], p["iteration"]): p["estimate"] for p in data["points"]} for data in (drawn, before))
    assert mine["coevolve", 1]["mean"] == pytest.approx(0.125)
    assert {key for key in mine if mine[key] != old[key]} == {("coevolve", 1)}


def test_a_missing_record_is_named(figure, capsys):
    command, records = figure
    assert run(command, *records[1:]) == 2
    lost = records[0].rpartition("elsewhere/")[2]
    assert f"stage `figure3`: the input {lost} is missing; give records=FILE." in capsys.readouterr().err


def test_a_record_of_nothing_is_named(figure, capsys, tmp_path):
    command, records = figure
    other = tmp_path / "elsewhere/tiny/webshop/other/seed0/iter1/eval/records.jsonl"
    other.parent.mkdir(parents=True)
    shutil.copy(records[0].partition("=")[2], other)
    assert run(command, *records, f"records={other}") == 2
    assert f"{other}: this stage reads no such `records`; leave it out." in capsys.readouterr().err
    again = tmp_path / "again" / records[0].rpartition("elsewhere/")[2]
    again.parent.mkdir(parents=True)
    shutil.copy(records[0].partition("=")[2], again)
    assert run(command, *records, f"records={again}") == 2
    assert "`records` has a second file" in capsys.readouterr().err
