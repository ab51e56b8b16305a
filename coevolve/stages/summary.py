"""Differences between methods, and each method's source, pairs and drops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve.report import differences, pair_counts
from coevolve.report.labels import ReportLabels
from coevolve.storage import files
from coevolve.workflow import results
from coevolve.workflow.job import Job


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `summary.md`."""
    suite = job.suite.with_model()
    recipes = {method: suite.recipes[method] for method in suite.methods}
    compared = differences.read(job.file("differences"))
    counts = pair_counts.read(results.summaries(job, suite, suite.methods))
    labels = ReportLabels.of(suite)
    text = differences.markdown(compared, labels)
    text += "\n" + pair_counts.methods_markdown(recipes.values(), counts, results.drops(job), labels)
    files.write_bytes(out / "summary.md", text.encode())
    return {"differences": len(compared)}
