"""Whether the suite could decide between the methods: checks of its regime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.config.suite import labels, with_model
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import TABLE, Stage
from coevolve.storage import files

if TYPE_CHECKING:
    from coevolve.pipeline.stage import Inputs
    from coevolve.pipeline.suite_files import SuiteFiles


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `regime.json` and `regime.md` for the first model."""
    from coevolve.pipeline.stages.parts import regime_evidence
    from coevolve.report import job_history, regime
    from coevolve.report.labels import ReportLabels

    suite, jobs = with_model(job.suite), job_history.read(job.inputs["provenance"])
    evidence = regime_evidence.read(suite, job.results, jobs.values())
    judged = regime_evidence.checks(suite, evidence)
    files.write_json(out / "regime.json", [check.model_dump(mode="json") for check in judged])
    files.write_bytes(out / "regime.md", regime.markdown(judged, ReportLabels.of(suite, labels(suite))).encode())
    return {"checks": len(judged), "passed": sum(check.passed is True for check in judged)}


def inputs(plan: SuiteFiles) -> Inputs:
    """Records, episodes and pairing summaries; the episodes of the row that shows whether tasks can be learned."""
    return plan.of("records", "explorations", "summaries", "practice")


STAGE = Stage(
    help="Check whether the suite could decide between methods.",
    run=run,
    reads=(*TABLE, "regime"),
    files=("regime.json", "regime.md"),
)
