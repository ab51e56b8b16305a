"""Results that no model made, made again: records of episodes, pairs, tables and the other products."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from pydantic import ValidationError

from coevolve.config.derived.methods import models_of, supports
from coevolve.config.restriction import part_of
from coevolve.config.sections import Ablation, GradientsConfig
from coevolve.config.suite import Suite
from coevolve.config.yaml_files import read_yaml
from coevolve.errors import UserError
from coevolve.follow import reexecution
from coevolve.follow.reexecution import FileDifference, Locate
from coevolve.pipeline.branch import Branch
from coevolve.pipeline.job import Job
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.registry import STAGES
from coevolve.pipeline.stage import PlannedJob, files_by_name, results_by_name
from coevolve.pipeline.stages import evaluate
from coevolve.pipeline.suite_files import CLAIMS, paths_of
from coevolve.records.episodes import Trajectory
from coevolve.records.evaluation import ResultFile
from coevolve.records.provenance import Provenance
from coevolve.shipped import shipped_file
from coevolve.storage import jsonl


def records(folder: Path, record: Provenance) -> FileDifference | None:
    """How the `records.jsonl` of an evaluation differs from that of its episodes."""
    quirks = reexecution.quirks(record)
    episodes, samples = jsonl.read(folder / "episodes.jsonl", Trajectory), record.config["evaluation"]["samples"]
    needs_actions = reexecution.section(record).needs_actions
    made = evaluate.records(episodes, quirks, record.seeds["suite"], samples, needs_actions)
    return _difference(folder / "records.jsonl", "".join(f"{each.to_json()}\n" for each in made).encode())


def stage(folder: Path, record: Provenance, locate: Locate) -> dict[str, FileDifference | None]:
    """How the files of a stage differ from those that it makes now of the same inputs; by name, of the files here.

    It runs where its inputs have the paths of the provenance, because products name them. Raises `UserError` if an
    input is not here, or the settings are of another version of the kit.
    """
    job = remade_job(record)
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        for name, path in ((name, Path(name)) for name in record.inputs):
            if (here := locate(name)) is None:
                raise UserError(f"its input {name} is not here as it was then (sha256 {record.inputs[name][:12]}).")
            if path.is_absolute() or ".." in path.parts:
                raise UserError(f"its input {name} is not below the folder in which the suite ran.")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(here)
        (made := Path("made")).mkdir()
        STAGES[record.stage].run(job, made)
        present = [path for path in made.iterdir() if (folder / path.name).exists()]
        return {path.name: _difference(folder / path.name, path.read_bytes()) for path in sorted(present)}


def remade_job(record: Provenance) -> Job:
    """The job of a provenance, with the sections and inputs that it has; `UserError` if another kit wrote it."""
    try:
        return _job(_suite(record), record)
    except (AttributeError, KeyError, ValidationError):
        raise UserError("its settings are of another version of the kit; check out its commit.") from None


def _suite(record: Provenance) -> Suite:
    """The sections of a provenance, as the suite that a stage reads."""
    return part_of({"without": []} | record.config)  # an empty one is in no record


def _job(suite: Suite, record: Provenance) -> Job:
    """The job of a stage with the inputs of its provenance."""
    results: dict[str, list[ResultFile]] = {}
    branch = Branch.parse(record.wildcards.get("branch", ""))
    if "branch" in record.wildcards:  # it has one recipe, which is too little for a plan
        inputs = {_input_name(record, Path(name)): [name] for name in record.inputs}
    else:
        planned = _planned(suite, record)
        inputs, results = files_by_name(planned.inputs), results_by_name(planned.inputs)
        if {path for paths in inputs.values() for path in paths} != record.inputs.keys():
            raise UserError("it was made of other files than this version of the kit reads; check out its commit.")
    paths = {name: [Path(path) for path in listed] for name, listed in inputs.items()}
    return Job(record.stage, suite, paths, record.wildcards, Path("work"), 1, results, branch=branch)


def _planned(suite: Suite, record: Provenance) -> PlannedJob:
    """The planned job of a product: in the suite's folder, with the machine whose costs it compares, of the ablation.

    The verdicts also judge methods of ablations, whose section they do not have: methods whose records were inputs.
    Sections that products do not read are the default ones; no path depends on them.
    """
    inside = next((path for path in record.inputs if f"/{suite.suite}/" in path), f"results/{suite.suite}/")
    machine = next((path for path in record.inputs if path.endswith(".yaml") and path != CLAIMS), Plan.machine)
    measured = any(path.endswith("gradients.json") for path in record.inputs)  # no product reads the section
    sections = vars(_defaults()) | vars(suite) | {"gradients": GradientsConfig(pairs=1 if measured else None)}
    plan = Plan(Suite.model_construct(**sections), inside.partition(f"/{suite.suite}/")[0], machine=machine)
    if "ablation" in record.wildcards:
        return plan.ablation(record.wildcards["ablation"])
    known, judged = {*paths_of(plan.records(plan.suite.methods))}, list[str]()
    for name in (name for name in suite.recipes if models_of(suite, name) and supports(plan.suite, name)):
        files = {*paths_of(plan.records([name]))}
        if known < known | files <= {*known, *record.inputs}:
            known |= files
            judged.append(name)
    ablations = {"judged": Ablation(label="", source="", methods=judged, default=True)} if judged else {}
    plan = replace(plan, suite=plan.suite.model_copy(update={"ablations": ablations}))
    return plan.products[record.stage]


@functools.cache
def _defaults() -> Suite:
    """The sections of the shipped defaults."""
    sections = read_yaml(shipped_file(Path("configs/parts/hyperparameters.yaml"))).plain() | {"sources": {}}
    del sections["recipes"], sections["ablations"]  # a product's provenance has its own
    return part_of(sections)


def _input_name(record: Provenance, path: Path) -> str:
    """The name of an input of pairs or of a selection: the agent that explored, or a file of the stage `data`."""
    selects = any(name.endswith("/sft.jsonl") for name in record.inputs)
    names = {"explore.jsonl": "tasks", "sft.jsonl": "experts", "example.json": "excluded_example"}
    names |= {"experts.jsonl": "explored_experts" if selects else "experts", "episodes.jsonl": path.parent.name}
    return names[path.name]


def _difference(path: Path, made: bytes) -> FileDifference | None:
    """The first line in which a file differs from what was made now, from 40 characters before the difference on."""
    if (content := path.read_bytes()) == made:
        return None
    lines = zip_longest(*(text.decode(errors="replace").split("\n") for text in (content, made)), fillvalue="")
    number, (then, now) = next((number, pair) for number, pair in enumerate(lines, start=1) if pair[0] != pair[1])
    begin = max(0, next((n for n, pair in enumerate(zip(then, now, strict=False)) if pair[0] != pair[1]), 0) - 40)
    return FileDifference(what=f"line {number}", recorded=then[begin:], now=now[begin:])
