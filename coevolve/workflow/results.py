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


def on_disk(layout: Layout, claims: Claims) -> Results:
    """The results of all finished methods that have a claim, in a suite about one model; and what is unfinished.

    The methods are of the suite or of its ablations. Raises `UserError` for a file that was changed.
    """
    ended = {method: _finished_seeds(layout, method) for method in layout.suite.recipes if method in claims.methods()}
    methods = [method for method, seeds in ended.items() if seeds == layout.suite.seeds]
    evaluated = {m: {key: Path(path) for key, path in layout.evaluations(m).items()} for m in methods}
    explored = {key: Path(path) for key, path in layout.explorations(methods).items()}
    for path in {*explored.values(), *(path for paths in evaluated.values() for path in paths.values())}:
        provenance.check_file(path)
    return Results(
        measurements=tuple(measurement.read(layout.suite, evaluated)),
        explorations=tuple(exploration.read(layout.suite, explored)),
        unfinished={
            (method, env): _unfinished(method, seeds, layout.suite)
            for method, seeds in ended.items()
            if method not in methods and _is_begun(layout, method)
            for env in layout.suite.envs
        },
    )


def _finished_seeds(layout: Layout, method: str) -> list[int]:
    """The seeds for which all results of a method are on disk."""
    paths = [*layout.evaluations(method).items(), *layout.explorations([method]).items()]
    missing = {key[2] for key, path in paths if not Path(path).exists()}
    return [seed for seed in layout.suite.seeds if seed not in missing]


def _is_begun(layout: Layout, method: str) -> bool:
    """Whether an evaluation of the method is on disk; that of iteration 0 is also of methods that were never run."""
    return any(
        Path(path).exists()
        for (_, env, _, iteration), path in layout.evaluations(method).items()
        if iteration == min(1, layout.iterations(env, method))
    )


def _unfinished(method: str, finished: Sequence[int], suite: Suite) -> str:
    counted = f"{len(finished)} of {len(suite.seeds)} seeds have all results"
    others = f", or judge the finished seeds with `--set 'seeds={[*finished]}'`" if finished else ""
    return f"`{method}` is unfinished: {counted}; finish the run{others}."
