"""Candidates, pairs and drops of every pairing, as data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import TABLE, Stage
from coevolve.storage import files, product_file

if TYPE_CHECKING:
    from coevolve.pipeline.stage import Inputs
    from coevolve.pipeline.suite_files import SuiteFiles


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `pairs.json`: candidates, pairs and drops by method, environment, seed, iteration, agent and pair kind.

    `pairs.svg` shows their sums over seeds.
    """
    from coevolve.report import drawing, pair_counts
    from coevolve.report.labels import ReportLabels
    from coevolve.report.pair_counts import PairCount

    rows = pair_counts.rows(pair_counts.read(job.files("summaries")))
    files.write_json(out / "pairs.json", rows)
    counts, labels = product_file.read(out / "pairs.json", list[PairCount]), ReportLabels.of(job.suite)
    drawing.write(out / "pairs.svg", lambda: pair_counts.draw(counts, labels))
    return {"rows": len(rows)}


def inputs(plan: SuiteFiles) -> Inputs:
    """The summaries of the pairings."""
    return plan.of("summaries")


STAGE = Stage(
    help="Count the pairs and drops of every pairing.",
    run=run,
    reads=TABLE,
    files=("pairs.json", "pairs.svg"),
)
