"""Whether the suite could decide between the methods: checks of its regime."""

from pathlib import Path
from typing import Any

from coevolve.config.derived.methods import labels, with_model
from coevolve.report import regime
from coevolve.report.job_history import JobHistory
from coevolve.report.labels import ReportLabels
from coevolve.run.job import Job
from coevolve.stages.parts import regime_evidence


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `regime.json` and `regime.md` for the first model."""
    suite, jobs = with_model(job.suite), JobHistory.read(job.inputs["provenance"]).jobs
    evidence = regime_evidence.read(suite, job.results, jobs.values())
    judged = regime_evidence.checks(suite, evidence)
    regime.write(judged, ReportLabels.of(suite, labels(suite)), out)
    return {"checks": len(judged), "passed": sum(check.passed is True for check in judged)}
