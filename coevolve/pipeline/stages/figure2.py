"""Figure 2: failures of each method on instructions that the SFT policy fails, and their rewards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.config.suite import labels as labels_of
from coevolve.config.suite import models_of, with_model
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import TABLE, Stage
from coevolve.storage import files

if TYPE_CHECKING:
    from coevolve.pipeline.stage import Inputs
    from coevolve.pipeline.suite_files import SuiteFiles


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write the figure as PNG and SVG, and its data as JSON."""
    from coevolve.report import drawing, exploration, figure2
    from coevolve.report.labels import ReportLabels
    from coevolve.report.measurement import Setting

    suite = with_model(job.suite)
    (model,) = models_of(suite)
    explored = exploration.read(suite, job.files("explorations"))
    setting = Setting(suite.suite, suite.models[model].label, suite.protocol).sentence()
    notes = " ".join([setting, *dict.fromkeys(each.note for each in explored if each.note)])
    labels, data = ReportLabels.of(suite), figure2.data(explored, labels_of(suite), notes, suite.report)
    files.write_json(out / "figure2.json", data.model_dump(mode="json"))
    drawing.write(out / "figure2.svg", lambda: figure2.draw(data, labels))
    return {"explorations": len(explored)}


def inputs(plan: SuiteFiles) -> Inputs:
    """The agents' episodes."""
    return plan.of("explorations")


STAGE = Stage(
    help="Draw Figure 2: failures, and the rewards of shared failures.",
    run=run,
    reads=TABLE,
    files=("figure2.json", "figure2.svg"),
)
