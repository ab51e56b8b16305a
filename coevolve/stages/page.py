"""All products on one HTML page that needs no other file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve.report import claims, html
from coevolve.report.html import PageFiles, RunSettings
from coevolve.report.job_history import JobHistory
from coevolve.run.job import Job
from coevolve.stages.parts.training_curves import trainings
from coevolve.storage import files


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `report.html` from the files of all other products."""
    jobs = JobHistory.read(job.inputs["provenance"]).jobs
    paper, pages = claims.load(job.file("claims")), PageFiles(job.inputs["products"])
    page = html.report(pages, RunSettings.of(job.suite), paper, jobs, list(trainings(jobs.values())))
    files.write_bytes(out / "report.html", page.encode())
    return {"products": len(job.inputs["products"])}
