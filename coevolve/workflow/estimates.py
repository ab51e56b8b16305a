"""Costs of a suite's jobs: estimated before they run, and measured once they are done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from coevolve.config.machine import Machine
from coevolve.report.costs import Cost, estimate
from coevolve.workflow.branch import Branch
from coevolve.workflow.plan import Plan
from coevolve.workflow.stage import Wildcards


def jobs(plan: Plan, machine: Machine) -> Iterator[tuple[str, str, Cost]]:
    """(stage, method, cost) of every job of a full run; jobs that methods share have the method `shared`."""
    for stage, wildcards in plan.jobs():
        method = Branch.parse(wildcards["branch"]).method if "branch" in wildcards else ""
        yield stage, method if method in plan.suite.recipes else "shared", cost(plan, machine, stage, wildcards)


def cost(plan: Plan, machine: Machine, stage: str, wildcards: Wildcards) -> Cost:
    """The estimated cost of a job, with the measured seconds if it is done."""
    weights = plan.suite.models[wildcards["model"]].parameter_count if "model" in wildcards else 0.0
    seconds = measured(plan, stage, wildcards)
    return estimate(plan.workload(stage, wildcards), weights, machine, stage, seconds)


def measured(plan: Plan, stage: str, wildcards: Wildcards) -> float | None:
    """Seconds that a finished job took; None where it left no provenance."""
    path = Path(plan.folder(stage, wildcards), "provenance.json")
    return float(json.loads(path.read_bytes())["seconds"]) if path.exists() else None
