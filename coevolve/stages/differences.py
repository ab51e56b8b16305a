"""Method against method, paired by task and seed."""

from pathlib import Path
from typing import Any

from coevolve.config.derived.methods import with_model
from coevolve.report import differences, measurement
from coevolve.run.job import Job
from coevolve.storage import files


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `differences.json`: average reward of every method minus that of every other, with intervals."""
    suite = with_model(job.suite)
    compared = differences.paired(measurement.final(list(measurement.read(suite, job.files("records")))), suite.report)
    files.write_json(out / "differences.json", [difference.model_dump(mode="json") for difference in compared])
    return {"differences": len(compared)}
