"""Candidates, pairs and drops of every pairing, as data."""

from pathlib import Path
from typing import Any

from coevolve.report import drawing, pair_counts
from coevolve.report.labels import ReportLabels
from coevolve.report.pair_counts import PairCount
from coevolve.run.job import Job
from coevolve.storage import files, product_file


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `pairs.json`: candidates, pairs and drops by method, environment, seed, iteration, agent and pair kind.

    `pairs.svg` shows their sums over seeds.
    """
    rows = pair_counts.rows(pair_counts.read(job.files("summaries")))
    files.write_json(out / "pairs.json", rows)
    counts, labels = product_file.read(out / "pairs.json", list[PairCount]), ReportLabels.of(job.suite)
    drawing.write(out / "pairs.svg", lambda: pair_counts.draw(counts, labels))
    return {"rows": len(rows)}
