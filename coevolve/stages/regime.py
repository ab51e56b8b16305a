"""Whether the suite could decide between the methods: checks of its regime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve.report import pair_counts, regime
from coevolve.report.job_history import JobHistory
from coevolve.report.labels import ReportLabels
from coevolve.types import TrainReport
from coevolve.workflow import results
from coevolve.workflow.branch import Branch
from coevolve.workflow.job import Job


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `regime.json` and `regime.md` for the first model."""
    suite = job.suite.with_model()
    history = JobHistory.read(job.inputs["provenance"])
    evidence = regime.RegimeEvidence(
        measurements=results.measurements(job, suite, suite.methods),
        explorations=results.explorations(job, suite, suite.methods),
        summaries=pair_counts.read(results.summaries(job, suite, suite.methods)),
        trainings=trainings(history, *suite.models),
    )
    result = regime.checks(evidence, suite.regime, suite.report, list(suite.envs), suite.seeds)
    labels = ReportLabels.of(suite, {method: recipe.label for method, recipe in suite.recipes.items()})
    regime.write(result, labels, out)
    return {"checks": len(result), "passed": sum(check.passed is True for check in result)}


def trainings(history: JobHistory, model: str) -> dict[regime.TrainingKey, TrainReport]:
    """The reports of a model's trainings in iterations of methods."""
    reports: dict[regime.TrainingKey, TrainReport] = {}
    for job in history.jobs.values():
        branch = Branch.parse(job.wildcards.get("branch", ""))
        if isinstance(job.notes, TrainReport) and branch.iteration and job.wildcards["model"] == model:
            agent = job.wildcards.get("agent", "target")
            reports[job.wildcards["env"], branch.method, agent, branch.seed, branch.iteration] = job.notes
    return reports
