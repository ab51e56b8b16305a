"""Figure 2: failures of each method on instructions that the SFT policy fails, and their rewards."""

from pathlib import Path
from typing import Any

from coevolve.config.derived.methods import labels as labels_of
from coevolve.config.derived.methods import models_of, with_model
from coevolve.report import drawing, exploration, figure2
from coevolve.report.labels import ReportLabels
from coevolve.report.measurement import Setting
from coevolve.run.job import Job
from coevolve.storage import files


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write the figure as PNG and SVG, and its data as JSON."""
    suite = with_model(job.suite)
    (model,) = models_of(suite)
    explored = exploration.read(suite, job.files("explorations"))
    setting = Setting(suite.suite, suite.models[model].label, suite.protocol).sentence()
    notes = " ".join([setting, *dict.fromkeys(each.note for each in explored if each.note)])
    labels, data = ReportLabels.of(suite), figure2.data(explored, labels_of(suite), notes, suite.report)
    files.write_json(out / "figure2.json", data.model_dump(mode="json"))
    drawing.write(out / "figure2.svg", lambda: figure2.draw(data, labels))
    return {"explorations": len(explored)}
