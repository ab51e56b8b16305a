"""Whether the suite could decide between the methods: checks of its regime."""

from pathlib import Path
from typing import Any

from coevolve.config.derived.methods import labels, with_model
from coevolve.report import job_history, regime
from coevolve.report.labels import ReportLabels
from coevolve.run.job import Job
from coevolve.stages.parts import regime_evidence
from coevolve.storage import files


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `regime.json` and `regime.md` for the first model."""
    suite, jobs = with_model(job.suite), job_history.read(job.inputs["provenance"])
    evidence = regime_evidence.read(suite, job.results, jobs.values())
    judged = regime_evidence.checks(suite, evidence)
    files.write_json(out / "regime.json", [check.model_dump(mode="json") for check in judged])
    files.write_bytes(out / "regime.md", regime.markdown(judged, ReportLabels.of(suite, labels(suite))).encode())
    return {"checks": len(judged), "passed": sum(check.passed is True for check in judged)}
