"""All products on one HTML page that needs no other file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from coevolve.report import claims, html
from coevolve.report.job_history import JobHistory
from coevolve.report.page_figures import TrainingCurve
from coevolve.storage import files
from coevolve.types import Provenance, TrainReport
from coevolve.workflow.branch import Branch
from coevolve.workflow.job import Job


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `report.html` from the files of all other products."""
    jobs = list(JobHistory.read(job.inputs["provenance"]).jobs.values())
    trained = list(trainings(jobs))
    page = html.report(job.inputs["products"], job.suite, claims.load(job.file("claims")), jobs, trained)
    files.write_bytes(out / "report.html", page.encode())
    return {"products": len(job.inputs["products"])}


def trainings(jobs: Iterable[Provenance]) -> Iterator[TrainingCurve]:
    """The histories of the trainings among finished jobs."""
    for job in jobs:
        if isinstance(job.notes, TrainReport) and job.notes.history:
            branch = Branch.parse(job.wildcards["branch"])
            yield TrainingCurve(
                model=job.wildcards["model"],
                env=job.wildcards["env"],
                agent=job.wildcards.get("agent", "target"),
                **vars(branch),
                result=job.result,
                history=job.notes.history,
            )
