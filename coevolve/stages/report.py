"""The paper's products: Table 1, Figure 3 and the counts behind them, each beside the paper's own numbers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from coevolve.config.machine import Machine, load_machine
from coevolve.report import claims, differences, figure3, html, table1, verdicts
from coevolve.report.measurement import Measurement
from coevolve.storage import files
from coevolve.workflow import analysis_files, costs, verify
from coevolve.workflow.job import Job, write_json
from coevolve.workflow.measurements import final, summary, write_tables
from coevolve.workflow.plan import Plan


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write the tables (Markdown, LaTeX, JSON), the figure and its data, and the counts.

    Of several models the first is reported; side by side they stand in a question's own table (stage `ablation`).
    """
    suite, paper = job.suite.with_model(), claims.load(job.file("claims"))
    labels = {method: suite.recipes[method].label for method in suite.methods}
    machine = load_machine(job.file("machine"))
    plan = Plan(suite, shards=machine.shards)
    results = verify.results(plan, suite.methods)
    last = final(plan, results.measurements)
    tables = [make(last, paper, labels, suite.report, 0) for make in (table1.reward_table, table1.success_table)]
    judged = verify.judge(plan, paper, results)
    tables[0] = verdicts.noted(tables[0], judged)
    # Where no method has iterations, the figure shows where they stand.
    drawn = [m for m in results.measurements if _in_figure(m)] or last
    curves = figure3.curves(drawn, labels, suite.report, 0)
    write_tables(tables, out, "table1")
    write_json(out / "figure3.json", curves.model_dump(mode="json"))
    files.write_bytes(out / "figure3.png", figure3.png(curves))
    compared = differences.paired(last, suite.report, 0)
    write_json(out / "differences.json", [difference.model_dump(mode="json") for difference in compared])
    files.write_bytes(out / "summary.md", summary(job, plan, compared, suite.methods).encode())
    _write_costs(Plan(job.suite, shards=machine.shards), machine, out)
    analysis_files.write(plan, paper, machine, suite.methods, results.explorations, out)
    counted = verify.write(judged, out)
    made_from = [path for paths in job.inputs.values() for path in paths]
    page = html.report(out, f"Suite {suite.suite}", paper, made_from)
    files.write_bytes(out / "report.html", page.encode())
    return {**counted, "cells": sum(cell.estimate is not None for t in tables for cell in t.cells)}


def _write_costs(plan: Plan, machine: Machine, out: Path) -> None:
    """What the jobs were reckoned to cost on this machine, and what they did."""
    found = [(stage, method, cost) for stage, method, cost in costs.jobs(plan, machine) if stage != "report"]
    tables = {
        "stage": costs.lines((stage, cost) for stage, _, cost in found),
        "method": costs.lines((method, cost) for _, method, cost in found),
    }
    text = "\n\n".join(costs.text(heading, rows) for heading, rows in tables.items())
    files.write_bytes(out / "costs.md", f"Predicted for {machine.label}, and measured.\n\n{text}\n".encode())
    write_json(out / "costs.json", {heading: [asdict(row) for row in rows] for heading, rows in tables.items()})


def _in_figure(measurement: Measurement) -> bool:
    """A curve begins with SFT, which all methods share; what has no iterations and is not SFT has no curve."""
    return measurement.iteration > 0 or measurement.method == "sft"
