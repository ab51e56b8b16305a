"""What a suite will cost on a machine, before anything runs, and what it cost, once its results lie there.

Every constant stands in a config: what a job has to do in `envs.*.expected` and the models, how fast it is done in the
machine's `costs`. Training costs 6 N floating-point operations a token and epoch, a forward pass 2 N (N parameters).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tabulate import tabulate

from coevolve.config.machine import Machine
from coevolve.workflow.branch import Branch
from coevolve.workflow.plan import Plan
from coevolve.workflow.workloads import FORWARD, TRAIN

#: Policies are kept in float32; a token takes about this many bytes: its id and text in JSON, or its id and log-prob.
BYTES_A_WEIGHT, BYTES_A_TOKEN = 4, 12


@dataclass(frozen=True)
class Cost:
    """Seconds of wall time, hours of GPUs held, bytes left on disk; `measured`: seconds that the job really took."""

    seconds: float
    gpu_hours: float
    bytes: float
    measured: float | None = None


@dataclass(frozen=True)
class Line:
    """The jobs of one stage or method together; the measured ones apart, with what had been predicted for them."""

    name: str
    jobs: int
    hours: float
    gpu_hours: float
    gigabytes: float
    done: int
    done_predicted_hours: float
    done_measured_hours: float


def jobs(plan: Plan, machine: Machine) -> Iterator[tuple[str, str, Cost]]:
    """(stage, method, cost) of every job of a full run; what methods share counts as `shared`."""
    for stage, wildcards in plan.jobs():
        method = Branch.parse(wildcards["branch"]).method if "branch" in wildcards else ""
        owner = method if method in plan.suite.recipes else "shared"
        yield stage, owner, cost(plan, machine, stage, wildcards)


def cost(plan: Plan, machine: Machine, stage: str, wildcards: Mapping[str, str]) -> Cost:
    """What one job will cost, and what it cost if its result is there."""
    constants, needs = machine.costs, machine.job_resources(stage)
    work = plan.workload(stage, wildcards)
    weights = plan.suite.models[wildcards["model"]].parameter_count if "model" in wildcards else 0.0
    devices = constants.flops * needs.processes
    seconds = constants.startup_seconds if work.starts else 0.0
    seconds += TRAIN * weights * work.train / (devices * constants.training)
    seconds += FORWARD * weights * work.read / (devices * constants.reading)
    seconds += FORWARD * weights * work.write / (devices * constants.writing)
    seconds += work.turn_seconds * constants.turn_scale
    policy = weights * BYTES_A_WEIGHT if work.keeps_weights else 0.0
    kept = policy + work.kept * BYTES_A_TOKEN
    measured = made(plan, stage, wildcards).get("seconds")
    return Cost(seconds, seconds * needs.gpus * needs.nodes / 3600, kept, measured)


def lines(found: Iterable[tuple[str, Cost]]) -> list[Line]:
    """Costs by name, in order of first appearance, and `all` of them at the end."""
    costs = list(found)
    names = dict.fromkeys(name for name, _ in costs)
    grouped = {name: [cost for own, cost in costs if own == name] for name in names}
    return [_line(name, group) for name, group in {**grouped, "all": [cost for _, cost in costs]}.items()]


def text(heading: str, rows: Sequence[Line]) -> str:
    """A table of costs: what was predicted, then, of the jobs that are done, what was predicted and measured."""
    columns = [heading, "jobs", "hours", "GPU-hours", "GB", "done", "predicted h", "measured h", "ratio"]
    table = [[*(getattr(row, field.name) for field in fields(row)), _ratio(row)] for row in rows]
    formats = ("", "d", ".2f", ".1f", ".2f", "d", ".3f", ".3f", ".2f")
    return tabulate(table, headers=columns, tablefmt="github", floatfmt=formats, missingval="-")


def _ratio(row: Line) -> float | None:
    """Measured over predicted, of what is done."""
    return row.done_measured_hours / row.done_predicted_hours if row.done_predicted_hours else None


def _line(name: str, costs: list[Cost]) -> Line:
    done = [(cost.seconds, cost.measured) for cost in costs if cost.measured is not None]
    return Line(
        name=name,
        jobs=len(costs),
        hours=sum(cost.seconds for cost in costs) / 3600,
        gpu_hours=sum(cost.gpu_hours for cost in costs),
        gigabytes=sum(cost.bytes for cost in costs) / 1e9,
        done=len(done),
        done_predicted_hours=sum(predicted for predicted, _ in done) / 3600,
        done_measured_hours=sum(measured for _, measured in done) / 3600,
    )


def made(plan: Plan, stage: str, wildcards: Mapping[str, str]) -> dict[str, Any]:
    """What a finished job says of itself; nothing where it left no result, as downloads do."""
    path = Path(plan.folder(stage, wildcards), "provenance.json")
    record: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
    return record
