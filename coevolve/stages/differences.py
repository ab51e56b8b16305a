"""Method against method, paired by task and seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve.report import differences
from coevolve.report.measurement import final
from coevolve.storage import files
from coevolve.workflow import results
from coevolve.workflow.job import Job


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `differences.json`: average reward of every method minus that of every other, with intervals."""
    suite = job.suite.with_model()
    compared = differences.paired(final(results.measurements(job, suite)), suite.report)
    files.write_json(out / "differences.json", [difference.model_dump(mode="json") for difference in compared])
    return {"differences": len(compared)}
