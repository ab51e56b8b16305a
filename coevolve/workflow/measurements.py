"""Tables of methods: what they are made of, read from the files of a plan, and how they are left."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from coevolve.report import differences, pair_counts, table
from coevolve.report.differences import Difference
from coevolve.report.measurement import Measurement
from coevolve.report.table import Table
from coevolve.storage import files, jsonl
from coevolve.types import Drop, EvalRecord
from coevolve.workflow.job import Job, write_json
from coevolve.workflow.plan import Plan


def measurements(plan: Plan, methods: Sequence[str]) -> Iterator[Measurement]:
    """Every method's records by environment, split and iteration, seeds together; the plan is about one model."""
    suite = plan.suite
    (model,) = suite.models
    for method in methods:
        found = plan.evaluations(method)
        for env, iteration in sorted({(env, iteration) for _, env, _, iteration in found}):
            files = sorted({path for (_, e, _, i), path in found.items() if (e, i) == (env, iteration)})
            records = [record for path in files for record in jsonl.read(Path(path), EvalRecord)]
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


def final(plan: Plan, measured: Sequence[Measurement]) -> list[Measurement]:
    """Those after a method's last iteration."""
    return [m for m in measured if m.iteration == plan.iterations(m.env, m.method)]


def summaries(plan: Plan, methods: Sequence[str]) -> dict[tuple[str, str, str, int, int, str], Any]:
    """What the pairings say of themselves, by the keys of `Plan.summaries`."""
    return {key: json.loads(Path(path).read_bytes()) for key, path in plan.summaries(methods).items()}


def write_tables(tables: Sequence[Table], out: Path, name: str) -> None:
    """Leave tables as Markdown, LaTeX and JSON."""
    files.write_bytes(out / f"{name}.md", "\n".join(table.markdown(t) for t in tables).encode())
    files.write_bytes(out / f"{name}.tex", "\n".join(table.latex(t) for t in tables).encode())
    write_json(out / f"{name}.json", [t.model_dump(mode="json") for t in tables])


def summary(job: Job, plan: Plan, compared: Sequence[Difference], methods: Sequence[str]) -> str:
    """The differences between methods, and where they come from with their pairs and drops, as Markdown."""
    labels = {method: plan.suite.recipes[method].label for method in methods}
    return f"{differences.markdown(compared, labels)}\n{_sources_and_counts(job, plan, methods)}"


def _sources_and_counts(job: Job, plan: Plan, methods: Sequence[str]) -> str:
    """Where each method comes from, and its pairs and drops by iteration, as Markdown."""
    left_out = Counter({path.parent.name: len(jsonl.read(path, Drop)) for path in job.inputs["drops"]})
    recipes = [plan.suite.recipes[method] for method in methods]
    rows = [f"* {recipe.label}: {recipe.source}" for recipe in recipes]
    return "\n".join(["## Methods", "", *rows, "", pair_counts.markdown(summaries(plan, methods), left_out)])
