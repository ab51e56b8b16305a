"""The table of an ablation: its methods side by side, and their differences, paired by task and seed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.config.suite import models_of, with_model
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import TABLE, Stage
from coevolve.storage import files

if TYPE_CHECKING:
    from coevolve.pipeline.stage import Inputs
    from coevolve.pipeline.suite_files import SuiteFiles


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write the tables (Markdown, LaTeX, JSON), the differences and the pair counts of each model."""
    from coevolve.report import claims, differences, figure3, looks, measurement, pair_counts, table
    from coevolve.report.labels import ReportLabels
    from coevolve.report.table import Table
    from coevolve.report.table1 import MeasuredCells

    paper = claims.load(job.file("claims"))
    (ablation,) = job.suite.ablations.values()
    recipes = {method: job.suite.recipes[method] for method in ablation.methods}
    records, summaries, drops = job.files("records"), job.files("summaries"), job.files("drops")
    tables, texts = list[Table](), list[str]()
    for name in models_of(job.suite):
        suite = with_model(job.suite, name)
        measured = list(measurement.read(suite, records))
        last = measurement.final(measured)
        counts = pair_counts.read({key: path for key, path in summaries.items() if key[1] == name})
        labels = ReportLabels.of(suite, {method: recipe.label for method, recipe in recipes.items()})
        cells = MeasuredCells.of(last, paper, labels, suite.report)
        tables += [cells.reward_table(of_paper=False), cells.success_table()]  # without what was not run
        report = looks.report_of(suite)
        compared, points = differences.paired(last, report), figure3.curves(measured, labels.methods, report).points
        text = pair_counts.methods_markdown(suite, recipes, counts, drops, labels)
        section = differences.markdown(compared, points, labels, report, looks.remark(suite))
        texts.append(f"Model: {suite.models[name].label}.\n\n{section}\n{text}")
    table.write(tables, out, "table")
    files.write_bytes(out / "summary.md", "\n".join(texts).encode())
    return {"cells": sum(subject.estimate is not None for each in tables for subject in each.cells)}


def inputs(plan: SuiteFiles, ablation: str) -> Inputs:
    """Everything that the table of an ablation's methods is made of, with all models."""
    methods = plan.suite.ablations[ablation].methods
    measured: Inputs = {"records": plan.records(methods, True), "summaries": plan.summaries(methods, True)}
    return measured | plan.of("drops", "claims")


STAGE = Stage(
    help="Write an ablation's table: its methods side by side.",
    run=run,
    reads=(*TABLE, "ablations"),
    files=("table.md", "table.tex", "table.json", "summary.md"),
)
