"""Result files by method, environment and iteration: those given to a job, and those of a suite on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from coevolve.config.suite import Suite
from coevolve.report import exploration, measurement
from coevolve.report.claim_tests import Results
from coevolve.report.claims import Claims
from coevolve.report.measurement import Measurement
from coevolve.storage import files, provenance
from coevolve.types import EvaluationKey, ExplorationKey, GradientReport, SummaryKey
from coevolve.workflow.job import Job
from coevolve.workflow.layout import Layout

Records = Mapping[str, Mapping[EvaluationKey, Path]]


def records(job: Job, suite: Suite, methods: Sequence[str]) -> Records:
    """The evaluation records given to a job, by method and key; raises `UserError` for a missing or a needless one."""
    layout = Layout(suite)
    tails = {(method, key): layout.tail(path) for method in methods for key, path in layout.evaluations(method).items()}
    paths = job.files("records", tails)
    return {method: {key: path for (owner, key), path in paths.items() if owner == method} for method in methods}


def measurements(job: Job, suite: Suite, methods: Sequence[str]) -> list[Measurement]:
    """The evaluations given to a job that is about one model."""
    return list(measurement.read(suite, records(job, suite, methods)))


def explorations(job: Job, suite: Suite, methods: Sequence[str]) -> list[exploration.Exploration]:
    """The explorations given to a job that is about one model."""
    layout = Layout(suite)
    tails: dict[ExplorationKey, str] = {k: layout.tail(path) for k, path in layout.explorations(methods).items()}
    return exploration.read(suite, job.files("explorations", tails))


def summaries(job: Job, suite: Suite, methods: Sequence[str]) -> dict[SummaryKey, Path]:
    """The pairing summaries given to a job."""
    layout = Layout(suite)
    return job.files("summaries", {key: layout.tail(path) for key, path in layout.summaries(methods).items()})


def gradients(job: Job, suite: Suite, methods: Sequence[str]) -> dict[SummaryKey, GradientReport]:
    """The gradients given to a job that is about one model; none if the suite does not measure them."""
    if "gradients" not in job.inputs:
        return {}
    layout = Layout(suite)
    paths = job.files("gradients", {key: layout.tail(path) for key, path in layout.gradients(methods).items()})
    return {key: GradientReport.from_json(files.read_bytes(path)) for key, path in paths.items()}


def drops(job: Job) -> dict[str, Path]:
    """The drops of each environment's `data` that a job was given."""
    layout = Layout(job.suite)
    return job.files("drops", {env: layout.tail(path) for env, path in layout.drops().items()})


def experts(job: Job) -> dict[str, Path]:
    """The experts of each environment that a job was given."""
    layout = Layout(job.suite)
    return job.files("experts", {env: layout.tail(path) for env, path in layout.experts().items()})


def on_disk(layout: Layout, methods: Sequence[str]) -> Results:
    """All results of `methods` in a suite about one model; raises `UserError` for a file that was changed."""
    evaluated = {m: {key: Path(path) for key, path in layout.evaluations(m).items()} for m in methods}
    explored = {key: Path(path) for key, path in layout.explorations(methods).items()}
    for path in {*explored.values(), *(path for paths in evaluated.values() for path in paths.values())}:
        if record := provenance.of_file(path):
            provenance.check(record, {path: files.sha256(path)})
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
