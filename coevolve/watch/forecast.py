"""The remaining wall time of a run: the estimated cost of its jobs over the speed of those that are done."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter

from coevolve.config.machine import Machine, job_resources
from coevolve.errors import UserError
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stage import PlannedJob, files_of
from coevolve.watch import estimates

#: Seconds by which a job takes longer than its estimated work: a process starts and ends.
START_SECONDS = 1.0
#: The time that a run took corrects the cost model. Both count alike after this share of the whole estimate and these
#: seconds, so that a first job that waits for a node does not predict that all do.
PRIOR_SHARE, PRIOR_SECONDS = 0.1, 20.0


def producers(plan: Plan, job: PlannedJob) -> set[str]:
    """The keys of the jobs that make the inputs of a job."""
    return {maker.key for path in files_of(job.inputs) if (maker := plan.job(path))}


@dataclass(frozen=True)
class Forecast:
    """By the key of each job: estimated seconds, the jobs that it waits for, the slots of all `slots` that it takes."""

    seconds: Mapping[str, float]
    after: Mapping[str, Collection[str]]
    width: Mapping[str, int]
    slots: int

    @classmethod
    def of(cls, plan: Plan, machine: Machine, jobs: Iterable[PlannedJob], slots: int, *, cluster: bool) -> Forecast:
        """The forecast of `jobs` on a computer with `slots` cores, or on a cluster that takes `slots` jobs at once."""
        keys = {job.key: job for job in jobs}
        after = {key: producers(plan, job) & keys.keys() for key, job in keys.items()}
        return cls(
            {key: _estimated(plan, machine, job) for key, job in keys.items()},
            after,
            {key: 1 if cluster else _width(machine, job.stage.name, slots) for key, job in keys.items()},
            slots,
        )

    def remaining(self, elapsed: float, running: Mapping[str, float], todo: Collection[str]) -> float:
        """Estimated wall seconds until the jobs of `running` and `todo` are done.

        `elapsed`: seconds since the run started. `running` has the seconds since each job's start. The cost model's
        estimate is corrected by the time that the run took for what it has done.
        """
        left = {key: max(self.seconds[key] - since, 0.1 * self.seconds[key]) for key, since in running.items()}
        rest = self._least({key: self.seconds[key] for key in todo} | left)
        prior = PRIOR_SHARE * self.whole + PRIOR_SECONDS
        return rest * (elapsed + prior) / (max(self.whole - rest, 0.0) + prior)

    @functools.cached_property
    def whole(self) -> float:
        """Estimated wall seconds of all jobs."""
        return self._least(self.seconds)

    @functools.cached_property
    def _order(self) -> tuple[str, ...]:
        return tuple(TopologicalSorter(self.after).static_order())

    def blocked(self, failed: Collection[str]) -> set[str]:
        """The failed jobs, and those that wait for one of them."""
        blocked = set(failed)
        for key in self._order:
            if not blocked.isdisjoint(self.after[key]):
                blocked.add(key)
        return blocked

    def _least(self, left: Mapping[str, float]) -> float:
        """Wall seconds of the jobs with these durations if all slots are busy, or of their longest chain if longer."""
        ends: dict[str, float] = {}
        for key in self._order:
            ends[key] = left.get(key, 0.0) + max((ends[other] for other in self.after[key]), default=0.0)
        work = math.fsum(seconds * min(self.width[key], self.slots) for key, seconds in left.items())
        return max(work / self.slots, *ends.values(), 0.0)


def _estimated(plan: Plan, machine: Machine, job: PlannedJob) -> float:
    """Estimated seconds of a job; where the suite gives no estimate, those of its start."""
    try:
        return START_SECONDS + estimates.cost(plan, machine, job).seconds
    except UserError:
        return START_SECONDS


def _width(machine: Machine, stage: str, slots: int) -> int:
    """The slots that a job takes: its cores, or its share of the computer's GPUs as a share of all `slots`."""
    resources = job_resources(machine, stage)
    of_gpus = math.ceil(slots * resources.gpus / machine.gpus_per_node) if machine.gpus_per_node else 0
    return max(resources.cpus, of_gpus)
