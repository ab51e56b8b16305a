"""The paper's products: Table 1, Figure 3 and the counts behind them, each beside the paper's own numbers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coevolve import store
from coevolve.paper import claims, counts, differences, figure3, table, table1
from coevolve.paper.measurement import Measurement
from coevolve.plan import Plan
from coevolve.stages.job import Job, write_json
from coevolve.types import Drop, EvalRecord


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write the tables (Markdown, LaTeX, JSON), the figure and its data, and the counts."""
    suite, paper = job.suite, claims.load(job.file("claims"))
    labels = {method: suite.recipes[method].label for method in suite.methods}
    measured = list(_measurements(Plan(suite)))
    final = [m for m in measured if m.iteration == Plan(suite).iterations(m.env, m.method)]
    tables = [make(final, paper, labels, suite.report, 0) for make in (table1.reward_table, table1.success_table)]
    curves = figure3.curves([m for m in measured if _in_figure(m)], labels, suite.report, 0)
    store.write_bytes(out / "table1.md", "\n".join(table.markdown(t) for t in tables).encode())
    store.write_bytes(out / "table1.tex", "\n".join(table.latex(t) for t in tables).encode())
    write_json(out / "table1.json", [t.model_dump(mode="json") for t in tables])
    write_json(out / "figure3.json", curves.model_dump(mode="json"))
    store.write_bytes(out / "figure3.png", figure3.png(curves))
    compared = differences.paired(final, suite.report, 0)
    write_json(out / "differences.json", [difference.model_dump(mode="json") for difference in compared])
    store.write_bytes(out / "summary.md", f"{differences.markdown(compared, labels)}\n{_counts(job)}".encode())
    return {"cells": sum(cell.estimate is not None for t in tables for cell in t.cells)}


def _measurements(plan: Plan) -> Iterator[Measurement]:
    """Every method's records by environment, split and iteration, seeds together."""
    suite = plan.suite
    (model,) = suite.models
    for method in suite.methods:
        found = plan.evaluations(method)
        for env, iteration in sorted({(env, iteration) for _, env, _, iteration in found}):
            files = sorted({path for (_, e, _, i), path in found.items() if (e, i) == (env, iteration)})
            records = [record for path in files for record in store.read(Path(path), EvalRecord)]
            for split in suite.envs[env].splits:
                yield Measurement(
                    suite=suite.suite,
                    model=suite.models[model].label,
                    protocol=suite.protocol,
                    method=method,
                    env=env,
                    split=split,
                    iteration=iteration,
                    records=tuple(record for record in records if record.split == split),
                    sources=tuple(files),
                    note=suite.envs[env].note,
                )


def _in_figure(measurement: Measurement) -> bool:
    """A curve begins with SFT, which all methods share; what has no iterations and is not SFT has no curve."""
    return measurement.iteration > 0 or measurement.method == "sft"


def _counts(job: Job) -> str:
    plan = Plan(job.suite)
    summaries = {key: json.loads(Path(path).read_text(encoding="utf-8")) for key, path in plan.summaries().items()}
    left_out = Counter({path.parent.name: len(store.read(path, Drop)) for path in job.inputs["drops"]})
    recipes = [job.suite.recipes[method] for method in job.suite.methods]
    methods = [f"* {recipe.label}: {recipe.source}" for recipe in recipes]
    return "\n".join(["## Methods", "", *methods, "", counts.markdown(summaries, left_out)])
