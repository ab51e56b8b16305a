"""A verdict on each claim of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve.report import claims, second_paper, verdicts
from coevolve.report.claim_tests import Results
from coevolve.workflow import results
from coevolve.workflow.job import Job


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `verdicts.json` and `verdicts.md`; returns the number of claims by verdict."""
    suite = job.suite.with_model()
    measured = results.measurements(job, suite)
    explored = results.explorations(job, suite)
    paper = claims.load(job.file("claims"))
    evidence = Results(tuple(measured), tuple(explored))
    judged = verdicts.verify(paper, evidence, suite.report, miniature=verdicts.is_miniature(suite))
    tables = second_paper.texts(paper.success_tables, measured, suite.report)
    return verdicts.write(judged, out, tables=tables)
