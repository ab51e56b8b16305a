"""The evidence for the regime checks of a suite: a job's inputs, or the results on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from coevolve.config.suite import Suite
from coevolve.report import exploration, measurement, pair_counts, regime
from coevolve.report.job_history import JobHistory
from coevolve.report.regime import RegimeCheck, RegimeEvidence
from coevolve.storage import jsonl, provenance
from coevolve.types import EvaluationKey, ExplorationKey, Provenance, TrainReport, Trajectory
from coevolve.workflow import results
from coevolve.workflow.branch import Branch
from coevolve.workflow.job import Job
from coevolve.workflow.layout import Layout

K = TypeVar("K")


def checks(suite: Suite, evidence: RegimeEvidence) -> list[RegimeCheck]:
    """All checks of a suite; a row with iterations of its own is finished after these."""
    iterations = {env: Layout(suite).iterations(env, suite.regime.method) for env in suite.envs}
    return regime.checks(evidence, suite.regime, suite.report, iterations, suite.seeds)


def of_job(job: Job) -> RegimeEvidence:
    """The results that the job was given, of the suite's first model."""
    suite = job.suite.with_model()
    return RegimeEvidence(
        measurements=results.measurements(job, suite),
        explorations=results.explorations(job, suite),
        summaries=pair_counts.read(results.summaries(job, suite, suite.methods)),
        trainings=_trainings(suite, JobHistory.read(job.inputs["provenance"]).jobs.values()),
        practice=_episodes(results.given(job, "practice", Layout(suite).practice())),
    )


def on_disk(layout: Layout) -> RegimeEvidence:
    """The results of a suite about one model that are finished, also while others still run.

    Raises `UserError` for a file that was changed.
    """
    suite = layout.suite
    evaluated = {method: _present(_final(layout, method)) for method in suite.methods}
    summaries = _present(layout.summaries(suite.methods))
    trained = Path(layout.home, *suite.models).glob("*/*/seed*/iter*/policy/*/provenance.json")
    return RegimeEvidence(
        measurements=list(measurement.read(suite, evaluated)),
        explorations=exploration.read(suite, _present(layout.explorations(suite.methods))),
        summaries=pair_counts.read(summaries),
        trainings=_trainings(suite, map(provenance.read, trained)),
        practice=_episodes(_present(layout.practice())),
    )


def _episodes(paths: Mapping[K, Path]) -> dict[K, list[Trajectory]]:
    return {key: jsonl.read(path, Trajectory) for key, path in paths.items()}


def _final(layout: Layout, method: str) -> dict[EvaluationKey, str]:
    """The records after a row's last iteration, so that no earlier one stands for it while it runs."""
    evaluations = layout.evaluations(method).items()
    return {key: path for key, path in evaluations if key[3] == layout.iterations(key[1], method)}


def _present(paths: Mapping[K, str]) -> dict[K, Path]:
    """The files that exist; raises `UserError` for one that was changed."""
    present = {key: Path(path) for key, path in paths.items() if Path(path).exists()}
    for path in {*present.values()}:
        provenance.check_file(path)
    return present


def _trainings(suite: Suite, jobs: Iterable[Provenance]) -> dict[ExplorationKey, TrainReport]:
    """The reports of the trainings in iterations of the suite's methods, of its single model."""
    reports: dict[ExplorationKey, TrainReport] = {}
    for job in jobs:
        branch = Branch.parse(job.wildcards.get("branch", ""))
        ours = branch.method in suite.methods and job.wildcards.get("model") in suite.models
        if isinstance(job.notes, TrainReport) and branch.iteration and ours:
            env, agent = job.wildcards["env"], job.wildcards.get("agent", "target")
            last = Layout(suite).iterations(env, branch.method) if env in suite.envs else 0
            if branch.seed in suite.seeds and branch.iteration <= last:
                reports[branch.method, env, branch.seed, branch.iteration, agent] = job.notes
    return reports
