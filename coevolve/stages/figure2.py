"""Figure 2: failures of each method on instructions that the SFT policy fails, and their rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve.report import drawing, figure2
from coevolve.report.labels import ReportLabels
from coevolve.report.measurement import Setting
from coevolve.storage import files
from coevolve.workflow import results
from coevolve.workflow.job import Job


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write the figure as PNG and SVG, and its data as JSON."""
    suite = job.suite.with_model()
    (model,) = suite.models.values()
    explored = results.explorations(job, suite)
    setting = Setting(suite.suite, model.label, suite.protocol).sentence()
    notes = " ".join([setting, *dict.fromkeys(each.note for each in explored if each.note)])
    labels, data = ReportLabels.of(suite), figure2.data(explored, suite.labels, notes, suite.report)
    files.write_json(out / "figure2.json", data.model_dump(mode="json"))
    drawing.write(out / "figure2", lambda: figure2.draw(data, labels))
    return {"explorations": len(explored)}
