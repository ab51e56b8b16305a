"""What the tables of a suite are made of, read from the files of its plan."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from coevolve import store
from coevolve.paper import counts
from coevolve.paper.measurement import Measurement
from coevolve.plan import Plan
from coevolve.stages.job import Job
from coevolve.types import Drop, EvalRecord


def measurements(plan: Plan, methods: Sequence[str]) -> Iterator[Measurement]:
    """Every method's records by environment, split and iteration, seeds together."""
    suite = plan.suite
    (model,) = suite.models
    for method in methods:
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


def final(plan: Plan, measured: Sequence[Measurement]) -> list[Measurement]:
    """Those after a method's last iteration."""
    return [m for m in measured if m.iteration == plan.iterations(m.env, m.method)]


def sources_and_counts(job: Job, methods: Sequence[str]) -> str:
    """Where each method comes from, and its pairs and drops by iteration, as Markdown."""
    plan = Plan(job.suite)
    summaries = {
        key: json.loads(Path(path).read_text(encoding="utf-8")) for key, path in plan.summaries(methods).items()
    }
    left_out = Counter({path.parent.name: len(store.read(path, Drop)) for path in job.inputs["drops"]})
    recipes = [job.suite.recipes[method] for method in methods]
    rows = [f"* {recipe.label}: {recipe.source}" for recipe in recipes]
    return "\n".join(["## Methods", "", *rows, "", counts.markdown(summaries, left_out)])
