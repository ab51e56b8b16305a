"""A question's own table: the methods it is about side by side, and how they differ task by task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve import store
from coevolve.paper import claims, differences, table, table1
from coevolve.plan import Plan
from coevolve.stages.job import Job, write_json
from coevolve.stages.measurements import final, measurements, sources_and_counts


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write the table (Markdown, LaTeX, JSON), the paired differences and the counts."""
    suite, plan, paper = job.suite, Plan(job.suite), claims.load(job.file("claims"))
    (ablation,) = suite.ablations.values()
    labels = {method: suite.recipes[method].label for method in ablation.methods}
    last = final(plan, list(measurements(plan, ablation.methods)))
    tables = [make(last, paper, labels, suite.report, 0) for make in (table1.measured_table, table1.success_table)]
    compared = differences.paired(last, suite.report, 0)
    store.write_bytes(out / "table.md", "\n".join(table.markdown(t) for t in tables).encode())
    store.write_bytes(out / "table.tex", "\n".join(table.latex(t) for t in tables).encode())
    write_json(out / "table.json", [t.model_dump(mode="json") for t in tables])
    text = f"{differences.markdown(compared, labels)}\n{sources_and_counts(job, ablation.methods)}"
    store.write_bytes(out / "summary.md", text.encode())
    return {"cells": sum(cell.estimate is not None for t in tables for cell in t.cells)}
