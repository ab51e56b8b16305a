"""A verdict on each claim of the paper."""

from pathlib import Path
from typing import Any

from coevolve.config.derived.methods import with_model
from coevolve.report import claims, exploration, looks, measurement, second_paper, verdicts
from coevolve.report.claim_tests import Results
from coevolve.run.job import Job


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `verdicts.json` and `verdicts.md`; returns the number of claims by verdict."""
    suite = with_model(job.suite)
    measured = list(measurement.read(suite, job.files("records")))
    explored = exploration.read(suite, job.files("explorations"))
    paper = claims.load(job.file("claims"))
    evidence = Results(tuple(measured), tuple(explored))
    judged = verdicts.verify(paper, evidence, looks.report_of(suite), miniature=verdicts.is_miniature(suite))
    return verdicts.write(judged, out, tables=second_paper.tables(paper, suite, measured))
