"""Results that no model made, made again: records of episodes, pairs, tables and the other products."""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from coevolve.config.derived.methods import models_of
from coevolve.config.sections import Ablation, GradientsConfig
from coevolve.config.suite import Suite
from coevolve.pipeline.layout import Layout
from coevolve.pipeline.registry import STAGES
from coevolve.pipeline.rules.products import CLAIMS, first
from coevolve.pipeline.stage import files_by_name, results_by_name
from coevolve.errors import UserError
from coevolve.follow import reexecution
from coevolve.follow.reexecution import FileDifference, Locate
from coevolve.records.episodes import Trajectory
from coevolve.records.provenance import Provenance
from coevolve.pipeline.job import Job
from coevolve.pipeline.stages import evaluate
from coevolve.storage import jsonl, provenance


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
        importlib.import_module(STAGES[record.stage].module).run(job, made)
        present = [path for path in made.iterdir() if (folder / path.name).exists()]
        return {path.name: _difference(folder / path.name, path.read_bytes()) for path in sorted(present)}


def remade_job(record: Provenance) -> Job:
    """The job of a provenance, with the sections and inputs that it has; `UserError` if another kit wrote it."""
    try:
        return _job(_suite(record), record)
    except (AttributeError, KeyError, ValidationError):
        raise UserError("its settings are of another version of the kit; check out its commit.") from None


def _suite(record: Provenance) -> Suite:
    """The sections of a provenance as the suite that a stage reads."""
    kinds: dict[str, Any] = {key: Suite.model_fields[key].annotation for key in record.config}
    sections = {key: TypeAdapter(kinds[key]).validate_python(value) for key, value in record.config.items()}
    return Suite.model_construct(_fields_set=set(sections), **sections)


def _job(suite: Suite, record: Provenance) -> Job:
    """The job of a stage with the inputs of its provenance."""
    results: dict[str, Any] = {}
    if "branch" in record.wildcards:  # it has one recipe, which is too little for a layout
        inputs = {_input_name(record, Path(name)): [name] for name in record.inputs}
    else:
        declared = STAGES[record.stage].inputs(_layout(suite, record), record.wildcards)
        history = [name for name in record.inputs if name.endswith(provenance.NAME)]
        inputs = files_by_name(declared) | ({"provenance": history} if history else {})
        results = results_by_name(declared)
        if {path for paths in inputs.values() for path in paths} != record.inputs.keys():
            raise UserError("it was made of other files than this version of the kit reads; check out its commit.")
    paths = {name: [Path(path) for path in listed] for name, listed in inputs.items()}
    return Job(record.stage, suite, paths, record.wildcards, Path("work"), 1, results)


def _layout(suite: Suite, record: Provenance) -> Layout:
    """The layout in which a product was made: the suite's folder, the machine whose costs it compares, the ablations.

    The verdicts also judge methods of ablations, whose section they do not have: methods whose records were inputs.
    """
    inside = next((path for path in record.inputs if f"/{suite.suite}/" in path), f"results/{suite.suite}/")
    machine = next((path for path in record.inputs if path.endswith(".yaml") and path != CLAIMS), Layout.machine)
    measured = any(path.endswith("gradients.json") for path in record.inputs)  # no product reads the section
    suite = suite.model_copy(update={"gradients": GradientsConfig(pairs=1 if measured else None)})
    layout = Layout(suite, root=inside.partition(f"/{suite.suite}/")[0], machine=machine)
    known, judged = {*first(layout).records(suite.methods).values()}, list[str]()
    for name in (name for name in suite.recipes if models_of(suite, name)):
        files = {*first(layout).records([name]).values()}
        if known < known | files <= {*known, *record.inputs}:
            known |= files
            judged.append(name)
    if "ablation" in record.wildcards or not judged:
        return layout
    ablations = {"judged": Ablation(label="", source="", methods=judged, default=True)}
    return replace(layout, suite=suite.model_copy(update={"ablations": ablations}))


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
