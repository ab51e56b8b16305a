"""Differences between methods, and each method's source, pairs and drops."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.config.suite import with_model
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import TABLE, Stage
from coevolve.storage import files, product_file

if TYPE_CHECKING:
    from coevolve.pipeline.stage import Inputs
    from coevolve.pipeline.suite_files import SuiteFiles


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `summary.md`."""
    from coevolve.report import differences, looks, pair_counts
    from coevolve.report.differences import Difference
    from coevolve.report.figure3 import Curves
    from coevolve.report.labels import ReportLabels

    suite = with_model(job.suite)
    compared = product_file.read(job.file("differences"), list[Difference])
    counts = pair_counts.read(job.files("summaries"))
    labels = ReportLabels.of(suite)
    points = product_file.read(job.file("figure3"), Curves).points
    text = differences.markdown(compared, points, labels, looks.report_of(suite), looks.remark(suite))
    text += "\n" + pair_counts.methods_markdown(suite, suite.methods, counts, job.files("drops"), labels)
    files.write_bytes(out / "summary.md", text.encode())
    return {"differences": len(compared)}


def inputs(plan: SuiteFiles) -> Inputs:
    """Two other products, the summaries of the pairings, and the drops of the experts."""
    return plan.of("summaries", "differences", "figure3", "drops")


STAGE = Stage(
    help="Write the differences between methods, and each method's source, pairs and drops.",
    run=run,
    reads=TABLE,
    files=("summary.md",),
)
