"""Costs of a suite's jobs: estimated before they run, and measured once they are done."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coevolve.config.machine import Machine, job_resources
from coevolve.config.models import STATES, parameter_count, training_memory
from coevolve.config.suite import Suite
from coevolve.errors import UserError
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stage import PlannedJob
from coevolve.pipeline.suite_files import paths_of
from coevolve.report.costs import Cost, estimate
from coevolve.storage import files, provenance
from coevolve.train.settings import RECOMPUTE_ABOVE, DpoConfig, Optimiser

#: The section of the trainings of single sequences, and of pairs.
OPTIMISERS: dict[str, Callable[[Suite], Optimiser]] = {
    "sft": lambda suite: suite.sft,
    "rft_train": lambda suite: suite.sft,
    "train": lambda suite: suite.dpo,
}


def jobs(plan: Plan, machine: Machine, targets: Sequence[str] = ()) -> Iterator[tuple[str, str, Cost]]:
    """(stage, method, cost) of every job that `targets` (a full run's) need; shared ones have the method `shared`."""
    for job in plan.jobs(targets):
        method = job.branch.method if job.branch else ""
        yield job.stage.name, method if method in plan.suite.recipes else "shared", cost(plan, machine, job)


def cost(plan: Plan, machine: Machine, job: PlannedJob) -> Cost:
    """The estimated cost of a job, with the measured seconds if it is done."""
    model, record = plan.suite.models.get(job.wildcards.get("model", "")), _record(job)
    work, engine, stage = plan.workload(job), plan.engine(job), job.stage.name
    estimated = estimate(work, model, machine, stage, engine)
    took, cpu = record.get("seconds"), record.get("cpu_seconds")
    return replace(estimated, measured=took, measured_cpu=cpu, reused="reused_from" in record)


def hours_of_a_seed(plan: Plan, machine: Machine) -> Callable[[frozenset[str]], float]:
    """The GPU-hours of one seed of some methods, with the jobs that they share, or of the whole suite for none."""

    @functools.cache
    def hours(methods: frozenset[str]) -> float:
        files = paths_of(plan.records(sorted(methods), every_model=True))
        return sum(cost.gpu_hours for *_, cost in jobs(plan, machine, files)) / len(plan.suite.seeds)

    return hours


def memory(plan: Plan, machine: Machine, targets: Sequence[str] = ()) -> dict[tuple[str, str], float]:
    """Bytes of a GPU in trainings of all weights that recompute activations, by (model, stage); none without GPUs.

    Computed for micro-batches of sequences, or pairs of them, that fill the context, without a reference model.
    """
    needed = plan.jobs(targets)
    jobs = {(job.wildcards["model"], job.stage.name) for job in needed if job.stage.name in OPTIMISERS}
    memory_of = {}
    for name, stage in sorted(jobs) if machine.gpus_per_node else ():
        model, resources = plan.suite.models[name], job_resources(machine, stage)
        launch = Path(machine.launch).stem if machine.launch and resources.processes > 1 else "ddp"
        config = OPTIMISERS[stage](plan.suite)
        sequences = config.micro_batch * (2 if isinstance(config, DpoConfig) else 1)
        parameters, tokens = parameter_count(model), model.context * sequences
        if model.lora is None and launch in STATES and parameters > RECOMPUTE_ABOVE:
            memory_of[name, stage] = training_memory(parameters, tokens, launch, resources.processes)
    return memory_of


def require_whole_batches(plan: Plan, machine: Machine, jobs: Iterable[PlannedJob]) -> None:
    """Raises `UserError` if the batch of a training of pairs or single sequences is not divided by its processes."""
    for job in jobs:
        if (stage := job.stage.name) in OPTIMISERS:
            config = OPTIMISERS[stage](plan.settings(job))
            micro, processes = min(config.micro_batch, config.batch_size), job_resources(machine, stage).processes
            if config.batch_size % (micro * processes):
                problem = (
                    f"`batch_size` {config.batch_size} of stage {stage} is not a multiple of `micro_batch` {micro}"
                )
                fix = f"change one of the two, or `stages.{stage}` of the machine"
                raise UserError(f"{plan.suite.suite}: {problem} times {processes} processes; {fix}.")


def measured(job: PlannedJob, clock: str = "seconds") -> float | None:
    """Seconds that a finished job took, by `clock` (`seconds` of wall time, or `cpu_seconds`).

    None where it left no provenance or no such time, or was reused, perhaps from elsewhere.
    """
    record = _record(job)
    return None if "reused_from" in record else record.get(clock)


def reused_from(job: PlannedJob) -> str | None:
    """The results of the suite for which a finished job's result was computed; None if the job ran."""
    source = _record(job).get("reused_from")
    return str(source).removesuffix(f"/{job.result}") if source else None


def _record(job: PlannedJob) -> dict[str, Any]:
    """The provenance of a job as JSON data, perhaps of another version of the kit; empty for none or a damaged one."""
    try:
        return dict(files.read_json(Path(job[provenance.NAME])))
    except (UserError, ValueError, TypeError):
        return {}
