"""Figure 3: average reward per iteration."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.config.suite import Suite, with_model
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import TABLE, Stage
from coevolve.storage import files

if TYPE_CHECKING:
    from coevolve.pipeline.stage import Inputs
    from coevolve.pipeline.suite_files import SuiteFiles
    from coevolve.report.measurement import Measurement


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write the figure and its data as JSON; where no method has iterations, it shows the final rewards."""
    from coevolve.report import drawing, figure3, measurement
    from coevolve.report.labels import ReportLabels
    from coevolve.report.measurement import final

    suite = with_model(job.suite)
    measured = list(measurement.read(suite, job.files("records")))
    trained = {each.method for each in measured if each.iteration}
    drawn = [each for each in measured if each.iteration or _begins_a_curve(each, suite, trained)] or final(measured)
    labels = ReportLabels.of(suite)
    curves = figure3.curves(drawn, labels.methods, suite.report)
    files.write_json(out / "figure3.json", curves.model_dump(mode="json"))
    drawing.write(out / "figure3.svg", lambda: figure3.draw(curves, labels))
    return {"points": len(drawn)}


def _begins_a_curve(measured: Measurement, suite: Suite, trained: Collection[str]) -> bool:
    """A curve begins with SFT, which methods share, or with the untrained model if its method starts there."""
    from coevolve.report import figure3

    method = measured.method
    is_apart = method in trained and suite.recipes[method].agents["target"].base == "untrained"
    return method == figure3.START or is_apart


def inputs(plan: SuiteFiles) -> Inputs:
    """The evaluation records."""
    return plan.of("records")


STAGE = Stage(
    help="Draw Figure 3: average reward per iteration.",
    run=run,
    reads=TABLE,
    files=("figure3.json", "figure3.svg"),
)
