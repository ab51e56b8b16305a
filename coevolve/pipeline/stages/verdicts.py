"""A verdict on each claim of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.config.derived.methods import with_model
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import TABLE, Stage

if TYPE_CHECKING:
    from coevolve.pipeline.stage import Inputs
    from coevolve.pipeline.suite_files import SuiteFiles


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `verdicts.json` and `verdicts.md`; returns the number of claims by verdict."""
    from coevolve.report import claims, exploration, looks, measurement, second_paper, verdicts
    from coevolve.report.claim_tests import Results

    suite = with_model(job.suite)
    measured = list(measurement.read(suite, job.files("records")))
    explored = exploration.read(suite, job.files("explorations"))
    paper = claims.load(job.file("claims"))
    evidence = Results(tuple(measured), tuple(explored))
    judged = verdicts.verify(paper, evidence, looks.report_of(suite), miniature=verdicts.is_miniature(suite))
    return verdicts.write(judged, out, tables=second_paper.tables(paper, suite, measured))


def inputs(plan: SuiteFiles) -> Inputs:
    """The results of the suite's methods and of its default ablations, and the claims."""
    methods = plan.judged()
    measured: Inputs = {"records": plan.records(methods), "explorations": plan.explorations(methods)}
    return measured | plan.of("claims")


STAGE = Stage(
    help="Judge each claim of the paper: it agrees with the results, differs, or cannot be told yet.",
    run=run,
    reads=TABLE,
    files=("verdicts.json", "verdicts.md"),
)
