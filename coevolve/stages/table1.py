"""Table 1: average rewards beside the paper's cells, and success rates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve.config.derived.methods import with_model
from coevolve.report import claims, measurement, table, table1
from coevolve.report.labels import ReportLabels
from coevolve.run.job import Job


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `table1` as Markdown, LaTeX and JSON."""
    suite, paper = with_model(job.suite), claims.load(job.file("claims"))
    last = measurement.final(list(measurement.read(suite, job.files("records"))))
    named = table1.named(ReportLabels.of(suite), last)
    rewards = table1.reward_table(last, paper, named, suite.report, suite.envs)
    tables = [rewards, table1.success_table(last, paper, named, suite.report)]
    table.write(tables, out, "table1")
    return {"cells": sum(cell.estimate is not None for each in tables for cell in each.cells)}
