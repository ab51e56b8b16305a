"""Differences between methods, and each method's source, pairs and drops."""

from pathlib import Path
from typing import Any

from coevolve.config.derived.methods import with_model
from coevolve.report import differences, looks, pair_counts
from coevolve.report.differences import Difference
from coevolve.report.figure3 import Curves
from coevolve.report.labels import ReportLabels
from coevolve.run.job import Job
from coevolve.storage import files, product_file


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `summary.md`."""
    suite = with_model(job.suite)
    compared = product_file.read(job.file("differences"), list[Difference])
    counts = pair_counts.read(job.files("summaries"))
    labels = ReportLabels.of(suite)
    points = product_file.read(job.file("figure3"), Curves).points
    text = differences.markdown(compared, points, labels, looks.report_of(suite), looks.remark(suite))
    text += "\n" + pair_counts.methods_markdown(suite, suite.methods, counts, job.files("drops"), labels)
    files.write_bytes(out / "summary.md", text.encode())
    return {"differences": len(compared)}
