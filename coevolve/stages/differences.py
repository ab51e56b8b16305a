"""Method against method, paired by task and seed."""

from pathlib import Path
from typing import Any

from coevolve.config.derived.methods import with_model
from coevolve.report import differences, looks, measurement
from coevolve.run.job import Job
from coevolve.storage import files


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `differences.json`: average reward of every method minus that of every other, with intervals."""
    suite = with_model(job.suite)
    final = measurement.final(list(measurement.read(suite, job.files("records"))))
    compared = differences.paired(final, looks.report_of(suite))
    files.write_json(out / "differences.json", [difference.model_dump(mode="json") for difference in compared])
    return {"differences": len(compared)}
