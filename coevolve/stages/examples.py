"""Failures of ETO's agent and of the failure agent on the same instructions, chosen by rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve.report import examples
from coevolve.report.labels import ReportLabels
from coevolve.storage import files
from coevolve.workflow import results
from coevolve.workflow.job import Job

#: Examples shown of each environment.
COUNT = 3


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `examples.md`."""
    suite = job.suite.with_model()
    explored = results.explorations(job, suite)
    chosen = [example for env in suite.envs for example in examples.examples(explored, env, COUNT)]
    files.write_bytes(out / "examples.md", examples.markdown(chosen, ReportLabels.of(suite).envs).encode())
    return {"examples": len(chosen)}
