"""The disk that a suite needs: while it runs, with the checkpoints of its trainings, and afterwards."""

from __future__ import annotations

import heapq
import shutil
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

from coevolve.config.derived.sizes import job_resources, trained_parameters
from coevolve.config.machine import Machine
from coevolve.follow import estimates
from coevolve.follow.forecast import producers
from coevolve.follow.pruning import policy_readers
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stage import PlannedJob
from coevolve.report.costs import Cost
from coevolve.report.number_text import duration, size

#: Bytes of a checkpoint for each weight that is trained, weights and AdamW's two moments in float32 with ZeRO's copy of
#: the weights; and how many checkpoints a training on several processes keeps (`docs/run/training.md`).
BYTES_A_CHECKPOINT, CHECKPOINTS = 16, 2


@dataclass(frozen=True)
class Disk:
    """Bytes: of all files that are written, of the results that stay, of downloads, and the most at any time.

    `peak` is of a run on one node (without GPUs: one job at a time), `widest` of one on as many as it can use; both
    with the downloads and with the checkpoints of running trainings, and with their hours of wall time.
    """

    written: float
    kept: float
    downloads: float
    peak: float
    widest: float
    peak_hours: float
    widest_hours: float

    def __str__(self) -> str:
        kept, downloads, peak, widest = (size(n / 1e9) for n in (self.kept, self.downloads, self.peak, self.widest))
        fetched = f" beside {downloads} of downloads" if self.downloads else ""
        narrow, wide = duration(self.peak_hours), duration(self.widest_hours)
        most = f"at most {peak} on one node in {narrow}, {widest} on as many as it can use in {wide}"
        return f"Disk: {kept} of results stay{fetched}; while it runs, with checkpoints, {most}."


def disk(plan: Plan, machine: Machine, targets: Sequence[str] = ()) -> Disk:
    """The estimated disk of a run of `targets` (none: a full run), with weights pruned where the machine says so."""
    jobs = {job.key: job for job in plan.jobs(targets)}
    costs = {key: estimates.cost(plan, machine, job) for key, job in jobs.items()}
    deleted = _deleted(plan, jobs, costs) if machine.prune_weights else {}
    downloads = sum(costs[key].bytes for key, job in jobs.items() if job.stage.shared)
    written = sum(cost.bytes for cost in costs.values())
    run = _Run(plan, machine, jobs, costs, deleted)
    (peak, hours), (widest, fewest) = run.peak(machine.gpus_per_node or 1), run.peak(10**9)
    return Disk(written, written - downloads - sum(deleted.values()), downloads, peak, widest, hours, fewest)


def _deleted(plan: Plan, jobs: Mapping[str, PlannedJob], costs: Mapping[str, Cost]) -> dict[str, float]:
    """Bytes of the weights that are deleted, by the `policy.json` of their policy."""
    makers = {path: plan.job(path) for path in policy_readers(plan, jobs.values()) if not plan.keeps_weights(path)}
    return {path: costs[maker.key].weights for path, maker in makers.items() if maker}


@dataclass(frozen=True)
class _Run:
    """A run in which each job starts as soon as its inputs are there and enough GPUs are free."""

    plan: Plan
    machine: Machine
    jobs: Mapping[str, PlannedJob]
    costs: Mapping[str, Cost]
    deleted: Mapping[str, float]

    def peak(self, slots: int) -> tuple[float, float]:
        """The most bytes on disk at any time with `slots` GPUs (without GPUs: jobs at a time), and hours of wall time.

        Of the jobs that can start, the one with the longest chain of jobs behind it starts first.
        """
        after = {key: producers(self.plan, job) for key, job in self.jobs.items()}
        readers = Counter(path for job in self.jobs.values() for path in self.plan.policies_read(job))
        behind = self._seconds_to_the_end(after)
        waiting = sorted(self.jobs, key=behind.__getitem__, reverse=True)
        running, free = list[tuple[float, str]](), slots
        now = held = most = 0.0
        while waiting or running:
            for key in [key for key in waiting if not after[key]]:
                if (width := self._width(key)) <= free:
                    waiting.remove(key)
                    free -= width
                    held += self.costs[key].bytes + self._checkpoints(key)
                    heapq.heappush(running, (now + self.costs[key].seconds, key))
            most = max(most, held)
            now, ended = heapq.heappop(running)
            free += self._width(ended)
            held -= self._checkpoints(ended)
            for others in after.values():
                others.discard(ended)
            for path in self.plan.policies_read(self.jobs[ended]):
                readers[path] -= 1
                held -= 0.0 if readers[path] else self.deleted.get(path, 0.0)
        return most, now / 3600

    def _seconds_to_the_end(self, after: Mapping[str, Collection[str]]) -> dict[str, float]:
        """Seconds of the longest chain of jobs that begins with each job."""
        behind = dict.fromkeys(self.jobs, 0.0)
        for key in reversed(list(TopologicalSorter(after).static_order())):
            behind[key] += self.costs[key].seconds
            for other in after[key]:
                behind[other] = max(behind[other], behind[key])
        return behind

    def _width(self, key: str) -> int:
        needs = job_resources(self.machine, self.jobs[key].stage.name)
        return needs.gpus * needs.nodes if self.machine.gpus_per_node else 1

    def _checkpoints(self, key: str) -> float:
        job = self.jobs[key]
        model, stage = self.plan.suite.models.get(job.wildcards.get("model", "")), job.stage.name
        work = self.plan.workload(job)
        if model is None or not (work.train and work.keeps_weights):
            return 0.0
        kept = CHECKPOINTS if job_resources(self.machine, stage).processes > 1 else 1
        return trained_parameters(model, stage) * BYTES_A_CHECKPOINT * kept


def missing(home: str, needed: Disk) -> str:
    """What the disk of a suite's results lacks for a run on one node, in one sentence; empty if nothing."""
    folder = next(path for path in (Path(home), *Path(home).resolve().parents) if path.exists())
    free = shutil.disk_usage(folder).free
    if free >= needed.peak:
        return ""
    least, short = size(needed.peak / 1e9), size((needed.peak - free) / 1e9)
    return f"{folder.resolve()}: {size(free / 1e9)} are free and {least} are needed; make room for {short}."
