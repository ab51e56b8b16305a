"""Result files by method, environment and iteration: those given to a job, and those of a suite on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from coevolve.config.suite import Suite
from coevolve.errors import UserError
from coevolve.report import exploration, measurement
from coevolve.report.claim_tests import Results
from coevolve.report.claims import Claims
from coevolve.report.measurement import Measurement
from coevolve.storage import files, provenance
from coevolve.types import EvaluationKey, GradientReport, SummaryKey
from coevolve.workflow.job import Job
from coevolve.workflow.layout import Layout

Records = Mapping[str, Mapping[EvaluationKey, Path]]
K = TypeVar("K")


def given(job: Job, name: str, paths: Mapping[K, str]) -> dict[K, Path]:
    """The input files called `name` of a job by key, where `paths` are those in its suite's layout.

    A file may lie below another folder. Raises `UserError` for a missing, a needless or a second file.
    """
    layout, files_by_tail = Layout(job.suite), dict[str, Path]()
    tails = {key: layout.tail(path) for key, path in paths.items()}
    wanted = set(tails.values())
    for path in job.inputs.get(name, []):
        tail = next((end for end in files.tails_of(path) if end in wanted), None)
        if tail is None:
            raise UserError(f"{path}: this stage reads no such `{name}`; leave it out.")
        if tail in files_by_tail:
            raise UserError(f"{path}: `{name}` has a second file {tail}, {files_by_tail[tail]}; give one of them.")
        files_by_tail[tail] = path
    for tail in tails.values():
        if tail not in files_by_tail:
            raise UserError(f"stage `{job.stage}`: the input {tail} is missing; give {name}=FILE.")
    return {key: files_by_tail[tail] for key, tail in tails.items()}


def records(job: Job, suite: Suite, methods: Sequence[str]) -> Records:
    """The evaluation records given to a job, by method and key; raises `UserError` for a missing or a needless one."""
    layout = Layout(suite)
    wanted = {(method, key): path for method in methods for key, path in layout.evaluations(method).items()}
    paths = given(job, "records", wanted)
    return {method: {key: path for (owner, key), path in paths.items() if owner == method} for method in methods}


def measurements(job: Job, suite: Suite) -> list[Measurement]:
    """The evaluations of a suite about one model that a job was given."""
    return list(measurement.read(suite, records(job, suite, suite.methods)))


def explorations(job: Job, suite: Suite) -> list[exploration.Exploration]:
    """The explorations of a suite about one model that a job was given."""
    return exploration.read(suite, given(job, "explorations", Layout(suite).explorations(suite.methods)))


def summaries(job: Job, suite: Suite, methods: Sequence[str]) -> dict[SummaryKey, Path]:
    """The pairing summaries given to a job."""
    return given(job, "summaries", Layout(suite).summaries(methods))


def training_pairs(job: Job, suite: Suite) -> dict[SummaryKey, Path]:
    """The pairs that a job was given, by training, of a suite about one model."""
    return given(job, "pairs", Layout(suite).training_pairs())


def gradients(job: Job, suite: Suite) -> dict[SummaryKey, GradientReport]:
    """The gradients of a suite about one model that a job was given; none if the suite does not measure them."""
    if "gradients" not in job.inputs:
        return {}
    paths = given(job, "gradients", Layout(suite).gradients())
    return {key: GradientReport.from_json(files.read_bytes(path)) for key, path in paths.items()}


def drops(job: Job) -> dict[str, Path]:
    """The drops of each environment's `data` that a job was given."""
    return given(job, "drops", Layout(job.suite).drops())


def on_disk(layout: Layout, methods: Sequence[str]) -> Results:
    """All results of `methods` in a suite about one model; raises `UserError` for a file that was changed."""
    evaluated = {m: {key: Path(path) for key, path in layout.evaluations(m).items()} for m in methods}
    explored = {key: Path(path) for key, path in layout.explorations(methods).items()}
    for path in {*explored.values(), *(path for paths in evaluated.values() for path in paths.values())}:
        provenance.check_file(path)
    return Results(tuple(measurement.read(layout.suite, evaluated)), tuple(exploration.read(layout.suite, explored)))


def finished(layout: Layout, claims: Claims) -> list[str]:
    """The methods with a claim of the paper whose results are all on disk, of the suite or of its ablations."""
    return [
        method
        for method in layout.suite.recipes
        if method in claims.methods()
        and all(
            Path(path).exists()
            for path in [*layout.evaluations(method).values(), *layout.explorations([method]).values()]
        )
    ]
