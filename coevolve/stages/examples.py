"""Failures of ETO's agent and of the failure agent on the same instructions, chosen by rule."""

from pathlib import Path
from typing import Any

from coevolve.config.derived.methods import with_model
from coevolve.report import examples, exploration
from coevolve.report.labels import ReportLabels
from coevolve.run.job import Job
from coevolve.storage import files

#: Examples shown of each environment.
COUNT = 3


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `examples.md`."""
    suite = with_model(job.suite)
    explored = exploration.read(suite, job.files("explorations"))
    chosen = [example for env in suite.envs for example in examples.examples(explored, env, COUNT)]
    files.write_bytes(out / "examples.md", examples.markdown(chosen, ReportLabels.of(suite).envs).encode())
    return {"examples": len(chosen)}
