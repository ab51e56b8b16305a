"""A question's own table: the methods it is about side by side, and how they differ task by task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve.config.sections import Ablation
from coevolve.report import claims, differences, table1
from coevolve.report.claims import Claims
from coevolve.report.table import Table
from coevolve.storage import files
from coevolve.workflow.job import Job
from coevolve.workflow.measurements import final, measurements, summary, write_tables
from coevolve.workflow.plan import Plan


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write the tables (Markdown, LaTeX, JSON), the paired differences and the counts, one model after the other."""
    paper = claims.load(job.file("claims"))
    (ablation,) = job.suite.ablations.values()
    plans = [Plan(job.suite.with_model(model)) for model in job.suite.models]
    found = [_of_model(job, plan, ablation, paper) for plan in plans]
    tables = [table for own, _ in found for table in own]
    write_tables(tables, out, "table")
    files.write_bytes(out / "summary.md", "\n".join(text for _, text in found).encode())
    return {"cells": sum(cell.estimate is not None for table in tables for cell in table.cells)}


def _of_model(job: Job, plan: Plan, ablation: Ablation, paper: Claims) -> tuple[list[Table], str]:
    """The tables and the summary of a plan's one model."""
    suite, methods = plan.suite, ablation.methods
    labels = {method: suite.recipes[method].label for method in methods}
    last = final(plan, list(measurements(plan, methods)))
    tables = [make(last, paper, labels, suite.report, 0) for make in (table1.measured_table, table1.success_table)]
    (model,) = suite.models.values()
    text = summary(job, plan, differences.paired(last, suite.report, 0), methods)
    return tables, f"Model: {model.label}.\n\n{text}"
