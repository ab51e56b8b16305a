"""All products on one HTML page that needs no other file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import TABLE, Stage
from coevolve.storage import files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coevolve.pipeline.stage import Inputs, PlannedJob
    from coevolve.pipeline.suite_files import SuiteFiles


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `report.html` from the files of all other products, and the figure of the training curves."""
    from coevolve.report import claims, drawing, html, job_history, training_figure
    from coevolve.report.html import PageFiles, RunSettings

    jobs = job_history.read(job.inputs["provenance"])
    settings, curves = RunSettings.of(job.suite), list(training_figure.trainings(jobs.values()))
    drawing.write(out / training_figure.NAME, lambda: training_figure.draw(curves, settings.labels))
    pages = PageFiles([*job.inputs["products"], out / training_figure.NAME])
    page = html.report(pages, settings, claims.load(job.file("claims")), jobs)
    files.write_bytes(out / "report.html", page.encode())
    return {"products": len(job.inputs["products"])}


def inputs(plan: SuiteFiles, shown: Sequence[PlannedJob]) -> Inputs:
    """The files of all jobs that the page shows."""
    return {"products": [path for job in shown for path in job.files]} | plan.of("claims")


STAGE = Stage(
    help="Put all products on one HTML page.", run=run, reads=TABLE, files=("report.html", "training_curves.svg")
)
