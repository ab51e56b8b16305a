"""Table 1: average rewards beside the paper's cells, and success rates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.config.suite import Suite, with_model
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import TABLE, Stage

if TYPE_CHECKING:
    from coevolve.pipeline.stage import Inputs
    from coevolve.pipeline.suite_files import SuiteFiles
    from coevolve.report.measurement import Measurement


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `table1` as Markdown, LaTeX and JSON."""
    from coevolve.report import claims, measurement, table
    from coevolve.report.labels import ReportLabels
    from coevolve.report.table1 import MeasuredCells

    suite, paper = with_model(job.suite), claims.load(job.file("claims"))
    last = measurement.final(list(measurement.read(suite, job.files("records"))))
    cells = MeasuredCells.of(last, paper, ReportLabels.of(suite), suite.report)
    notes = [*_left_out(suite), *_other_versions(suite, last), *_absent_rows(suite)]
    tables = [cells.reward_table(suite.envs, notes=notes), cells.success_table()]
    table.write(tables, out, "table1")
    return {"cells": sum(subject.estimate is not None for each in tables for subject in each.cells)}


def _left_out(suite: Suite) -> list[str]:
    """The environments that the run left out, and the command that adds them."""
    names = ", ".join(f"`{name}`" for name in suite.without)
    command = f"`snakemake --profile smoke --config suite={suite.suite}`"
    return [f"Left out: {names}. With what it needs here (`coevolve doctor`), {command} adds it."] if names else []


def _other_versions(suite: Suite, measured: Sequence[Measurement]) -> list[str]:
    """Environments in another version than that of the committed results."""
    identities = {(each.env, record.environment) for each in measured for record in each.records}
    return sorted(filter(None, (suite.envs[env].other_version(identity) for env, identity in identities)))


def _absent_rows(suite: Suite) -> list[str]:
    """The rows about models that the suite does not have, by their source, which says how to make them."""
    absent = [recipe for recipe in suite.recipes.values() if recipe.model and recipe.model not in suite.models]
    labels = {each.source: ", ".join(row.label for row in absent if row.source == each.source) for each in absent}
    return [f"Without a model in this suite: {names} ({source})." for source, names in labels.items()]


def inputs(plan: SuiteFiles) -> Inputs:
    """The evaluation records and the claims."""
    return plan.of("records", "claims")


STAGE = Stage(
    help="Write Table 1 with the paper's numbers.",
    run=run,
    reads=TABLE,
    files=("table1.md", "table1.tex", "table1.json"),
)
