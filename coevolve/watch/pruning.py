"""Deletion of weights after their last use (machine key `prune_weights`), and what a run does that needs them again.

A policy is used by every job that reads its `policy.json`: rollouts, reference log-probs, evaluations, gradients and
the next training. The base policies, the last target of each row and environment, and adapters stay
(`Plan.keeps_weights`).
"""

from __future__ import annotations

import logging
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from coevolve.errors import UserError
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stage import PlannedJob
from coevolve.report.number_text import size
from coevolve.storage import files, policy_dir, provenance, pruned
from coevolve.watch import job_text

log = logging.getLogger(__name__)


@dataclass
class Pruning:
    """The policies that jobs of a run read, and all jobs of the run or the suite that read them.

    `read` are the policies of the run's own jobs: no other is pruned. `todo` are the jobs that the run has yet to make.
    `command` runs Snakemake with the run's options and without targets.
    """

    plan: Plan
    readers: Mapping[str, Mapping[str, PlannedJob]]
    read: Collection[str]
    todo: set[str]
    command: str

    @classmethod
    def of(cls, plan: Plan, jobs: Iterable[PlannedJob], todo: Iterable[PlannedJob], command: str) -> Pruning:
        """The pruning of a run of `jobs`, of which it makes those in `todo`."""
        of_run = list(jobs)
        readers = policy_readers(plan, [*of_run, *plan.jobs()])
        read = dict.fromkeys(path for path in policy_readers(plan, of_run) if not plan.keeps_weights(path))
        return cls(plan, readers, read, {job.key for job in todo}, command)

    def sweep(self) -> Iterator[str]:
        """Prune all policies that no job will read; gives a line for each."""
        for path in self.read:
            yield from self._prune(path)

    def after(self, job: PlannedJob) -> Iterator[str]:
        """Prune the policies that a finished job was the last to read; gives a line for each."""
        self.todo.discard(job.key)
        for path in self.plan.policies_read(job):
            if path in self.read:
                yield from self._prune(path)

    def _prune(self, path: str) -> Iterator[str]:
        folder = Path(path).parent
        if not Path(path).exists() or not all(self._is_done(job, path) for job in self.readers[path].values()):
            return
        try:
            deleted = pruned.prune(folder, policy_dir.WEIGHTS, remake(self.command, [path]))
        except UserError as error:
            log.warning("%s", error)
            return
        if deleted and (maker := self.plan.job(path)):
            yield f"{job_text.job_label(self.plan.suite, maker)}  weights pruned, {size(deleted / 1e9)}"

    def _is_done(self, job: PlannedJob, path: str) -> bool:
        """Whether a job has left a result of this policy, and of its present settings and code."""
        record = provenance.if_valid(Path(job[provenance.NAME]))
        if record is None or job.key in self.todo or record.inputs.get(path) != files.sha256(Path(path)):
            return False
        return not self.plan.changed_since(record)


def policy_readers(plan: Plan, jobs: Iterable[PlannedJob]) -> dict[str, dict[str, PlannedJob]]:
    """The jobs that read each policy, by its `policy.json`."""
    readers: dict[str, dict[str, PlannedJob]] = defaultdict(dict)
    for job in jobs:
        for path in plan.policies_read(job):
            readers[path][job.key] = job
    return dict(readers)


def require_weights(plan: Plan, todo: Iterable[PlannedJob], command: str) -> None:
    """Raise `UserError` if jobs of a run read pruned weights that the run does not make; it has the command for it."""
    jobs = {job.key: job for job in todo}
    needed: dict[str, None] = {}
    first = next((job for job in jobs.values() if _add_pruned(plan, job, jobs, needed)), None)
    if first is None:
        return
    for job in jobs.values():
        _add_pruned(plan, job, jobs, needed)
    label, count = job_text.job_label(plan.suite, first), len(needed)
    weights = f"the weights of {Path(next(iter(needed))).parent}" + (f" and of {count - 1} more" if count > 1 else "")
    again = f"make them again with `{remake(command, [*needed])}`, then run the same command again"
    raise UserError(f"`{label}` needs {weights}, which were deleted after their last use; {again}.")


def _add_pruned(plan: Plan, job: PlannedJob, made: Collection[str], needed: dict[str, None]) -> bool:
    """Add the pruned policies that a job reads, each after those that its training starts from; whether there are any.

    Those of the jobs in `made` are made in the same run.
    """
    before = len(needed)
    for path in plan.policies_read(job):
        maker = plan.job(path)
        if path not in needed and maker and maker.key not in made and pruned.read(Path(path).parent):
            _add_pruned(plan, maker, made, needed)
            needed[path] = None
    return len(needed) > before


def remake(command: str, policies: Collection[str]) -> str:
    """The command for bash that trains policies again, one run for each: what follows from one is not made again."""
    if len(policies) == 1:
        return f"{command} --force -- {shlex.quote(next(iter(policies)))}"
    return f'for policy in {shlex.join(policies)}; do {command} --force -- "$policy" || break; done'
