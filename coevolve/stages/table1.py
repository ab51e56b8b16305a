"""Table 1: average rewards beside the paper's cells, and success rates."""

from pathlib import Path
from typing import Any

from coevolve.config.derived.methods import with_model
from coevolve.config.suite import Suite
from coevolve.report import claims, measurement, table
from coevolve.report.labels import ReportLabels
from coevolve.report.table1 import MeasuredCells
from coevolve.run.job import Job


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `table1` as Markdown, LaTeX and JSON."""
    suite, paper = with_model(job.suite), claims.load(job.file("claims"))
    last = measurement.final(list(measurement.read(suite, job.files("records"))))
    cells = MeasuredCells.of(last, paper, ReportLabels.of(suite), suite.report)
    tables = [cells.reward_table(suite.envs, notes=_absent_rows(suite)), cells.success_table()]
    table.write(tables, out, "table1")
    return {"cells": sum(cell.estimate is not None for each in tables for cell in each.cells)}


def _absent_rows(suite: Suite) -> list[str]:
    """The rows about models that the suite does not have, by their source, which says how to make them."""
    absent = [recipe for recipe in suite.recipes.values() if recipe.model and recipe.model not in suite.models]
    labels = {each.source: ", ".join(row.label for row in absent if row.source == each.source) for each in absent}
    return [f"Without a model in this suite: {names} ({source})." for source, names in labels.items()]
