"""All products on one HTML page that needs no other file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve.report import claims, html
from coevolve.report.job_history import JobHistory
from coevolve.storage import files
from coevolve.workflow.job import Job


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `report.html` from the files of all other products."""
    history = JobHistory.read(job.inputs["provenance"])
    page = html.report(
        job.inputs["products"], f"Suite {job.suite.suite}", claims.load(job.file("claims")), history.jobs.values()
    )
    files.write_bytes(out / "report.html", page.encode())
    return {"products": len(job.inputs["products"])}
