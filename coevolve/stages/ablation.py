"""A question's own table: the methods it is about side by side, and how they differ task by task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve.paper import claims, differences, table1
from coevolve.plan import Plan
from coevolve.stages.job import Job
from coevolve.stages.measurements import final, measurements, write_summary, write_tables


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write the table (Markdown, LaTeX, JSON), the paired differences and the counts."""
    suite, plan, paper = job.suite, Plan(job.suite), claims.load(job.file("claims"))
    (ablation,) = suite.ablations.values()
    labels = {method: suite.recipes[method].label for method in ablation.methods}
    last = final(plan, list(measurements(plan, ablation.methods)))
    tables = [make(last, paper, labels, suite.report, 0) for make in (table1.measured_table, table1.success_table)]
    write_tables(tables, out, "table")
    write_summary(job, differences.paired(last, suite.report, 0), ablation.methods, out)
    return {"cells": sum(cell.estimate is not None for t in tables for cell in t.cells)}
