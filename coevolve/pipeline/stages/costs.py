"""Estimated and measured hours of all jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.config.loading import read_machine
from coevolve.config.machine import Machine
from coevolve.config.suite import labels
from coevolve.pipeline import accounting
from coevolve.pipeline.branch import Branch
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import Stage
from coevolve.records.provenance import Provenance, Workload
from coevolve.storage import files

if TYPE_CHECKING:
    from coevolve.pipeline.stage import Inputs
    from coevolve.pipeline.suite_files import SuiteFiles
    from coevolve.report.costs import Accounted, Cost, Line


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `costs.md` and `costs.json`: a table by stage and one by method; and their figure. Notes the machine.

    A job whose environment had no `expected` when it ran has no estimate, and is left out. Where Slurm's accounting
    knows the run, a third table has what it counts.
    """
    from coevolve.report import costs, drawing, job_history

    machine, history = read_machine(job.file("machine")), job_history.read(job.inputs["provenance"])
    jobs = [(each, _cost(job, machine, each, load)) for each in history.values() if (load := each.workload)]
    tables = {
        "stage": costs.lines((each.stage, cost) for each, cost in jobs),
        "method": costs.lines((_owner(job, each), cost) for each, cost in jobs),
    }
    named = {"method": labels(job.suite)}
    text = "\n\n".join(costs.text(heading, rows, named.get(heading, {})) for heading, rows in tables.items())
    if left_out := len(history) - len(jobs):
        text += f"\n\nNot in the tables: {left_out} of {len(history)} jobs, which ran without `expected`."
    slurm = _accounted(history.values())
    if slurm:
        text += f"\n\n{costs.accounted_text(slurm)}"
    files.write_bytes(out / "costs.md", f"Predicted for {machine.label}, and measured.\n\n{text}\n".encode())
    numbers: dict[str, Sequence[Line | Accounted]] = {**tables, **({"slurm": slurm} if slurm else {})}
    files.write_json(out / "costs.json", {heading: [asdict(row) for row in rows] for heading, rows in numbers.items()})
    drawing.write(out / "costs.svg", lambda: costs.draw(tables, labels(job.suite)))
    return {"jobs": len(jobs), "machine": machine.model_dump(mode="json")}


def _cost(job: Job, machine: Machine, record: Provenance, workload: Workload) -> Cost:
    """Estimated and measured cost of a finished job; its workload was estimated when it ran."""
    from coevolve.report import costs

    model = job.suite.models.get(record.wildcards.get("model", ""))
    # PPO and GRPO, which train while they play, do not play with the sampler's engine.
    section = next((name for name in ("ppo", "grpo") if name in record.config), "sampler")
    engine = record.config.get(section, {}).get("engine")
    cost = costs.estimate(workload, model, machine, record.stage, engine)
    reused = record.reused_from is not None
    return replace(cost, measured=record.seconds, measured_cpu=record.cpu_seconds, reused=reused)


def _accounted(history: Iterable[Provenance]) -> list[Accounted]:
    """The attempts of the run's Slurm jobs: of jobs with a result by stage, of others that ended by their state."""
    from coevolve.report import costs
    from coevolve.report.costs import Accounted

    stages = {each.slurm_job: each.stage for each in history if each.slurm_job and each.reused_from is None}
    ended = [each for each in accounting.attempts(stages) if each.state not in ("PENDING", "RUNNING")]
    return costs.accounted(
        Accounted(
            name=stages.get(each.job, each.state.lower()),
            attempts=1,
            waited_hours=each.waited / 3600,
            hours=each.seconds / 3600,
            gpu_hours=each.seconds / 3600 * each.gpus,
        )
        for each in ended
    )


def _owner(job: Job, record: Provenance) -> str:
    """The method that a job belongs to, or `shared`."""
    method = Branch.parse(record.wildcards.get("branch", "")).method
    return method if method in job.suite.recipes else "shared"


def inputs(plan: SuiteFiles) -> Inputs:
    """The machine's file, and those that it extends."""
    return plan.of("machine", "machine_parents")


STAGE = Stage(
    help="Compare estimated and measured hours of all jobs.",
    run=run,
    reads=("models", "recipes"),
    files=("costs.md", "costs.json", "costs.svg"),
)
