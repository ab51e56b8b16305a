"""Figure 3: average reward per iteration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve.report import drawing, figure3
from coevolve.report.labels import ReportLabels
from coevolve.report.measurement import Measurement, final
from coevolve.storage import files
from coevolve.workflow import results
from coevolve.workflow.job import Job


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write the figure and its data as JSON; where no method has iterations, it shows the final rewards."""
    suite = job.suite.with_model()
    labels = {method: suite.recipes[method].label for method in suite.methods}
    measured = results.measurements(job, suite, suite.methods)
    drawn = [each for each in measured if _in_figure(each)] or final(measured)
    curves = figure3.curves(drawn, labels, suite.report, 0)
    shown = ReportLabels.of(suite)
    files.write_json(out / "figure3.json", curves.model_dump(mode="json"))
    files.write_bytes(out / "figure3.png", drawing.png(lambda: figure3.draw(curves, shown)))
    files.write_bytes(out / "figure3.svg", drawing.svg(lambda: figure3.draw(curves, shown)))
    return {"points": len(drawn)}


def _in_figure(measurement: Measurement) -> bool:
    """A curve begins with SFT, which all methods share; other methods without iterations have no curve."""
    return measurement.iteration > 0 or measurement.method == figure3.START
