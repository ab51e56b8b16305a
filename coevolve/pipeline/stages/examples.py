"""Failures of ETO's agent and of the failure agent on the same instructions, chosen by rule."""

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

#: Examples shown of each environment.
COUNT = 3


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `examples.md`."""
    from coevolve.report import examples, exploration
    from coevolve.report.labels import ReportLabels

    suite = with_model(job.suite)
    explored = exploration.read(suite, job.files("explorations"))
    chosen = [example for env in suite.envs for example in examples.examples(explored, env, COUNT)]
    files.write_bytes(out / "examples.md", examples.markdown(chosen, ReportLabels.of(suite).envs).encode())
    return {"examples": len(chosen)}


def inputs(plan: SuiteFiles) -> Inputs:
    """The agents' episodes."""
    return plan.of("explorations")


STAGE = Stage(
    help="Show failures of two agents on the same instructions, selected by a fixed rule.",
    run=run,
    reads=TABLE,
    files=("examples.md",),
)
