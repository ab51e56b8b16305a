"""Method against method, paired by task and seed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.config.suite import with_model
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import TABLE, Stage
from coevolve.storage import files

if TYPE_CHECKING:
    from coevolve.pipeline.stage import Inputs
    from coevolve.pipeline.suite_files import SuiteFiles


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `differences.json`: average reward of every method minus that of every other, with intervals."""
    from coevolve.report import differences, looks, measurement

    suite = with_model(job.suite)
    final = measurement.final(list(measurement.read(suite, job.files("records"))))
    compared = differences.paired(final, looks.report_of(suite))
    files.write_json(out / "differences.json", [difference.model_dump(mode="json") for difference in compared])
    return {"differences": len(compared)}


def inputs(plan: SuiteFiles) -> Inputs:
    """The evaluation records."""
    return plan.of("records")


STAGE = Stage(
    help="Compare the methods, paired by task and seed.",
    run=run,
    reads=TABLE,
    files=("differences.json",),
)
