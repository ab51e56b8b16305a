"""The disk that a suite needs: while it runs, with the checkpoints of its trainings, and afterwards."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coevolve.config.machine import Machine, job_resources
from coevolve.config.models import trained_parameters
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stage import PlannedJob
from coevolve.report.costs import Cost
from coevolve.report.number_text import size
from coevolve.watch import estimates
from coevolve.watch.pruning import policy_readers

#: Bytes of a checkpoint for each weight that is trained, weights and AdamW's two moments in float32 with ZeRO's copy of
#: the weights; and how many checkpoints a training on several processes keeps (`docs/run/training.md`).
BYTES_A_CHECKPOINT, CHECKPOINTS = 16, 2


@dataclass(frozen=True)
class Disk:
    """Bytes: of all files that are written, of the results that stay, of downloads, and the most at any time.

    `peak` is of a run on one node, with the downloads and with the checkpoints of running trainings.
    """

    written: float
    kept: float
    downloads: float
    peak: float

    def __str__(self) -> str:
        kept, downloads, peak = (size(bytes_ / 1e9) for bytes_ in (self.kept, self.downloads, self.peak))
        fetched = f" beside {downloads} of downloads" if self.downloads else ""
        return f"Disk: {kept} of results stay{fetched}; while it runs on one node, with checkpoints, at most {peak}."


def disk(plan: Plan, machine: Machine, targets: Sequence[str] = ()) -> Disk:
    """The estimated disk of a run of `targets` (none: a full run), with weights pruned where the machine says so."""
    jobs = {job.key: job for job in plan.jobs(targets)}
    costs = {key: estimates.cost(plan, machine, job) for key, job in jobs.items()}
    deleted = _deleted(plan, jobs, costs) if machine.prune_weights else {}
    readers = Counter(path for job in jobs.values() for path in plan.policies_read(job))
    held = peak = 0.0
    for key, job in jobs.items():
        held += costs[key].bytes
        peak = max(peak, held + _checkpoints(plan, machine, job))
        for path in plan.policies_read(job):
            readers[path] -= 1
            held -= 0.0 if readers[path] else deleted.get(path, 0.0)
    downloads = sum(costs[key].bytes for key, job in jobs.items() if job.stage.shared)
    written = sum(cost.bytes for cost in costs.values())
    return Disk(written, written - downloads - sum(deleted.values()), downloads, peak)


def _deleted(plan: Plan, jobs: Mapping[str, PlannedJob], costs: Mapping[str, Cost]) -> dict[str, float]:
    """Bytes of the weights that are deleted, by the `policy.json` of their policy."""
    makers = {path: plan.job(path) for path in policy_readers(plan, jobs.values()) if not plan.keeps_weights(path)}
    return {path: costs[maker.key].weights for path, maker in makers.items() if maker}


def _checkpoints(plan: Plan, machine: Machine, job: PlannedJob) -> float:
    """Bytes of the checkpoints of as many trainings as a node can run at a time, if the job is one."""
    model, needs = plan.suite.models.get(job.wildcards.get("model", "")), job_resources(machine, job.stage.name)
    work = plan.workload(job)
    if model is None or not (work.train and work.keeps_weights):
        return 0.0
    at_a_time = max(1, machine.gpus_per_node // (needs.gpus or 1))
    kept = CHECKPOINTS if needs.processes > 1 else 1
    return at_a_time * kept * trained_parameters(model, job.stage.name) * BYTES_A_CHECKPOINT


def missing(home: str, needed: Disk) -> str:
    """What the disk of a suite's results lacks for a run on one node, in one sentence; empty if nothing."""
    folder = next(path for path in (Path(home), *Path(home).resolve().parents) if path.exists())
    free = shutil.disk_usage(folder).free
    if free >= needed.peak:
        return ""
    least, short = size(needed.peak / 1e9), size((needed.peak - free) / 1e9)
    return f"{folder.resolve()}: {size(free / 1e9)} are free and {least} are needed; make room for {short}."
