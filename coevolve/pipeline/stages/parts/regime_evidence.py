"""The evidence for the regime checks, in the files of results and the notes of finished jobs."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from coevolve.config.suite import Suite, iterations_of
from coevolve.records.episodes import Trajectory
from coevolve.records.evaluation import ExplorationKey, ResultFile
from coevolve.records.provenance import Provenance
from coevolve.records.training import TrainReport
from coevolve.report import exploration, learnability, measurement, pair_counts, regime
from coevolve.report.regime import RegimeCheck, RegimeEvidence
from coevolve.results.tables import of_job
from coevolve.storage import jsonl


def checks(suite: Suite, evidence: RegimeEvidence) -> list[RegimeCheck]:
    """All checks of a suite; a row with iterations of its own is finished after these."""
    iterations = {env: iterations_of(suite, env, suite.regime.method) for env in suite.envs}
    return regime.checks(evidence, suite.regime, suite.report, iterations, suite.seeds)


def read(suite: Suite, files: Mapping[str, Sequence[ResultFile]], jobs: Iterable[Provenance]) -> RegimeEvidence:
    """The evidence in files of a suite about one model, by their names as inputs, and in the notes of finished jobs."""
    return RegimeEvidence(
        measurements=list(measurement.read(suite, files.get("records", []))),
        explorations=exploration.read(suite, files.get("explorations", [])),
        summaries={
            (of.method, of.model, of.env, of.seed, of.iteration, of.agent): summary
            for of, summary in pair_counts.read(files.get("summaries", []))
        },
        trainings=_trainings(suite, jobs),
        practice={
            (file.env, file.seed): learnability.scores(jsonl.stream(Path(file.path), Trajectory))
            for file in files.get("practice", [])
        },
    )


def _trainings(suite: Suite, jobs: Iterable[Provenance]) -> dict[ExplorationKey, TrainReport]:
    """The reports of the trainings in iterations of the suite's methods, of its single model."""
    reports: dict[ExplorationKey, TrainReport] = {}
    for job in jobs:
        of = of_job(job)
        ours = (
            of.method in suite.methods and of.model in suite.models and of.env in suite.envs and of.seed in suite.seeds
        )
        if isinstance(job.notes, TrainReport) and ours and 0 < of.iteration <= iterations_of(suite, of.env, of.method):
            reports[of.method, of.env, of.seed, of.iteration, of.agent or "target"] = job.notes
    return reports
