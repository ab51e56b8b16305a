"""All products on one HTML page that needs no other file."""

from pathlib import Path
from typing import Any

from coevolve.report import claims, drawing, html, job_history, training_figure
from coevolve.report.html import PageFiles, RunSettings
from coevolve.run.job import Job
from coevolve.stages.parts.training_curves import trainings
from coevolve.storage import files


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `report.html` from the files of all other products, and the figure of the training curves."""
    jobs = job_history.read(job.inputs["provenance"])
    settings, curves = RunSettings.of(job.suite), list(trainings(jobs.values()))
    drawing.write(out / training_figure.NAME, lambda: training_figure.draw(curves, settings.labels))
    pages = PageFiles([*job.inputs["products"], out / training_figure.NAME])
    page = html.report(pages, settings, claims.load(job.file("claims")), jobs)
    files.write_bytes(out / "report.html", page.encode())
    return {"products": len(job.inputs["products"])}
