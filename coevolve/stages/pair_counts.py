"""Candidates, pairs and drops of every pairing, as data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve.report import pair_counts
from coevolve.storage import files
from coevolve.workflow import results
from coevolve.workflow.job import Job


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `pairs.json`: candidates, pairs and drops by method, environment, seed, iteration, agent and pair kind."""
    suite = job.suite.with_model()
    rows = pair_counts.rows(pair_counts.read(results.summaries(job, suite, suite.methods)))
    files.write_json(out / "pairs.json", rows)
    return {"rows": len(rows)}
