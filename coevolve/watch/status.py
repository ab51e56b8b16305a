"""The state of a suite's jobs, from the files that they leave: while a run goes on, and after it.

Neither Snakemake nor Slurm is queried. A finished job has left its provenance, a running one holds its lock, a failed
one has an error at the end of its log.
"""

from __future__ import annotations

import enum
import fcntl
import os
import shlex
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coevolve.config.machine import Machine
from coevolve.export import suite_evidence
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stage import PlannedJob, files_of, work_folder
from coevolve.records.provenance import Provenance
from coevolve.storage import files, policy_dir, provenance, pruned
from coevolve.watch import job_text
from coevolve.watch.forecast import Forecast, producers
from coevolve.watch.run_record import RunRecord

#: Seconds that a job may take from its start to its lock.
START_SECONDS = 60.0


class JobState(enum.StrEnum):
    """The state of a job.

    `changed`: a file of the result was deleted or edited after its stage made it. `made elsewhere`: its provenance and
    what products read of it were unpacked here (`coevolve export evidence`).
    """

    DONE = "done"
    ELSEWHERE = "made elsewhere"
    RUNNING = "running"
    FAILED = "failed"
    STOPPED = "stopped"
    CHANGED = "changed"
    TODO = "to do"


#: States that give `coevolve status` the exit status 1.
ATTENTION = (JobState.FAILED, JobState.CHANGED)
#: States in which a job is not made again by the next run.
SETTLED = (JobState.DONE, JobState.ELSEWHERE, JobState.CHANGED)


@dataclass(frozen=True)
class JobStatus:
    """A job's state; the text is the error of a failed job, or what was changed. `seconds`: since a job's start."""

    state: JobState
    text: str = ""
    seconds: float = 0.0


@dataclass
class SuiteState:
    """The results of `jobs`, as they are on disk: those of the suite, and those of its last run, `record`.

    A job comes after those that it reads results of.

    `requested` are the jobs that the last run's targets need; without a run, all. `name`: the suite's name or file.
    `full`: every file is read, weights too.
    """

    plan: Plan
    name: str
    jobs: Mapping[str, PlannedJob]
    requested: Collection[str]
    record: RunRecord | None
    now: float = field(default_factory=time.time)
    full: bool = False

    @classmethod
    def of(cls, plan: Plan, record: RunRecord | None, name: str, *, full: bool = False) -> SuiteState:
        """The results of a suite; jobs of the last run that the suite no longer has are left out."""
        run = [job for key in record.jobs if (job := plan.by_key(key))] if record else []
        files = [path for job in run for path in job.files]
        jobs = {job.key: job for job in plan.jobs([*plan.targets(), *files])}
        return cls(plan, name, jobs, {job.key for job in run} or jobs.keys(), record, full=full)

    def __post_init__(self) -> None:
        self.is_run_alive = _is_locked(Path(self.plan.home, ".lock"))
        records = {key: provenance.if_valid(self._folder(key) / provenance.NAME) for key in self.jobs}
        self._made = {key: record for key, record in records.items() if record}
        self._states: dict[str, JobStatus] = {}
        self._planned = {self.record.jobs[number] for number in self.record.todo} if self.record else set()
        self._deleted = self._deleted_inputs()

    def states(self) -> dict[str, JobStatus]:
        """The state of each job."""
        return {key: self._state(key) for key in self.jobs}

    def _state(self, key: str) -> JobStatus:
        """The state of a job; a result whose inputs differ from the present or pending ones is to be made again."""
        if key not in self._states:
            try:
                status = self._by_files(key)
            except FileNotFoundError:  # of a job that has ended, or replaced its result, at this moment
                status = JobStatus(JobState.TODO)
            if status.state is JobState.DONE:
                before = producers(self.plan, self.jobs[key]) & self.jobs.keys()
                if any(self._state(other).state not in SETTLED or self._differs(key, other) for other in before):
                    status = JobStatus(JobState.TODO)
            self._states[key] = status
        return self._states[key]

    def _differs(self, key: str, producer: str) -> bool:
        """Whether a job read other bytes of a producer than those that the producer made last."""
        if key not in self._made or producer not in self._made:
            return False
        folder, outputs = self._folder(producer), self._made[producer].outputs
        read = {name: self._made[key].inputs.get(str(folder / name)) for name in outputs}
        return any(sha256 not in (None, outputs[name]) for name, sha256 in read.items())

    def _by_files(self, key: str) -> JobStatus:
        """The state of a job by its own files."""
        job, folder = self.jobs[key], self._folder(key)
        lock = work_folder(folder) / "lock"
        if _is_locked(lock):
            return JobStatus(JobState.RUNNING, seconds=max(self.now - lock.stat().st_mtime, 0.0))
        if key in self._made:
            is_part = self._is_unpacked(key)
            if problem := self._changed_file(folder, self._made[key], is_part=is_part):
                return JobStatus(JobState.CHANGED, problem)
            changed = self.plan.changed_since(self._made[key])
            if is_part and "settings" not in changed:  # perhaps by other code, which nothing here would run
                return JobStatus(JobState.ELSEWHERE)
            if changed:
                return JobStatus(JobState.TODO)
            return JobStatus(JobState.TODO if self._reads_other_files(key) else JobState.DONE)
        if not job.leaves_provenance and all(map(os.path.exists, job.files)):  # a person put a download there
            return JobStatus(JobState.DONE)
        return self._by_log(key, self.log(key), was_stopped=lock.parent.exists())  # a job that ends deletes this folder

    def _by_log(self, key: str, log: Path, *, was_stopped: bool) -> JobStatus:
        """The state of a job without a result and without a lock; what precedes the active run does not count."""
        written = log.stat().st_mtime if log.exists() else 0.0
        if not (self.is_run_alive and self.record and written < self.record.started):
            if sentence := job_text.failure(log):
                return JobStatus(JobState.FAILED, sentence)
            if self.is_run_alive and self.now - written < START_SECONDS:
                return JobStatus(JobState.RUNNING, seconds=self.now - written)
            if was_stopped:
                return JobStatus(JobState.STOPPED)
        if key in self._deleted and not (self.is_run_alive and key in self._planned):
            return JobStatus(JobState.CHANGED, f"{self._deleted[key]}: the file was deleted")
        return JobStatus(JobState.TODO)

    def _is_unpacked(self, key: str) -> bool:
        """Whether a job's result is evidence from elsewhere."""
        return (self._folder(key) / suite_evidence.MARKER).exists()

    def _reads_other_files(self, key: str) -> bool:
        """Whether a job reads other files now, or one from outside that is not the file that it read.

        Files from outside are a given checkpoint's and the machine's, for example.
        """
        read = self._made[key].inputs
        if read.keys() != {str(Path(path)) for path in files_of(self.jobs[key].inputs)}:
            return True
        written = (self._folder(key) / provenance.NAME).stat().st_mtime
        outside = {Path(path): sha256 for path, sha256 in read.items() if not self.plan.job(path)}
        return any(self._is_other(path, sha256, written) for path, sha256 in outside.items())

    def _changed_file(self, folder: Path, record: Provenance, *, is_part: bool) -> str:
        """The first file of a result that is missing, or has another hash; empty if none.

        With `is_part` files may be missing; so may the pruned weights of a policy.
        """
        written = (folder / provenance.NAME).stat().st_mtime
        pruned_files = pruned.deleted(folder)
        for name, sha256 in record.outputs.items():
            path = folder / name
            if not path.exists():
                if is_part or name in pruned_files:
                    continue
                return f"{path}: the file was deleted"
            if self._is_other(path, sha256, written):
                return f"{path}: the file was changed after its stage made it"
        return ""

    def _is_other(self, path: Path, sha256: str, written: float) -> bool:
        """Whether a file or folder has another hash than that of its provenance, which was written at this time.

        Only what is newer is read, unless all is to be. Other suites link weights, which changes the time of the link.
        """
        large = path.is_dir() or path.match(policy_dir.WEIGHTS)
        states = [part.stat() for part in (path, *path.rglob("*"))]
        newest = max(each.st_mtime if large else max(each.st_mtime, each.st_ctime) for each in states)
        return (self.full or newest > written) and files.sha256(path) != sha256

    def log(self, key: str) -> Path:
        """The log of a job."""
        return Path(self.plan.log(self.jobs[key]))

    def _folder(self, key: str) -> Path:
        """The folder of a job's files."""
        return Path(self.jobs[key].folder)

    def _deleted_inputs(self) -> dict[str, str]:
        """Deleted files that a job which finished here has read, by the job that makes them."""
        read = {path for key, record in self._made.items() if not self._is_unpacked(key) for path in record.inputs}
        paths = sorted(read, key=lambda path: (not path.endswith(provenance.NAME), path))  # it is named if no other is
        makers = {path: maker for path in paths if not Path(path).exists() and (maker := self.plan.job(path))}
        return {maker.key: path for path, maker in makers.items()}

    def remake(self, key: str) -> str:
        """The command that makes a result again."""
        job = self.jobs[key]
        again = f"{self.command(without_targets=True)} -- {shlex.quote(job.files[0])}"
        return f"rm -rf {shlex.quote(job.folder)} && {again}"

    def command(self, *, without_targets: bool = False) -> str:
        """The command of the last run; without one, the command with a placeholder for the profile."""
        if not self.record:
            return f"snakemake --profile PROFILE --config suite={shlex.quote(self.name)}"
        return self.record.options if without_targets else self.record.command

    def seconds_left(self, machine: Machine, record: RunRecord, states: Mapping[str, JobStatus]) -> float:
        """Estimated wall seconds until the requested jobs of the last run, `record`, are done that can be."""
        by_state = {state: {key for key in self.requested if states[key].state is state} for state in JobState}
        slots, cluster = record.slots, record.cluster
        todo = by_state[JobState.TODO] | by_state[JobState.STOPPED]
        if not self.is_run_alive:
            pending = [self.jobs[key] for key in todo | by_state[JobState.FAILED] | by_state[JobState.RUNNING]]
            return Forecast.of(self.plan, machine, pending, slots, cluster=cluster).whole
        keys = {key: job for key, job in self.jobs.items() if key in self._planned}
        forecast = Forecast.of(self.plan, machine, keys.values(), slots, cluster=cluster)
        running = {key: states[key].seconds for key in by_state[JobState.RUNNING] if key in keys}
        todo = (todo & keys.keys()) - forecast.blocked(by_state[JobState.FAILED])
        return forecast.remaining(self.now - record.started, running, todo)


def text(results: SuiteState, machine: Machine | None) -> Iterator[str]:
    """The state of a suite's jobs in lines; without a machine, no time left."""
    states = results.states()
    keys = {state: [key for key, job in states.items() if job.state is state] for state in JobState}
    yield from _counts(results, states, machine)
    names = {key: job_text.job_label(results.plan.suite, job) for key, job in results.jobs.items()}
    for key in keys[JobState.RUNNING]:
        progress = job_text.progress(results.log(key))
        yield f"running  {names[key]}  {job_text.clock(states[key].seconds)}" + (f"  {progress}" if progress else "")
    for key in keys[JobState.FAILED]:
        yield f"FAILED   {names[key]}: {states[key].text}\n         log: {results.log(key)}"
    for key in keys[JobState.STOPPED]:
        yield f"stopped  {names[key]}: it ended without an error message.\n         log: {results.log(key)}"
    for key in keys[JobState.CHANGED]:
        yield f"CHANGED  {names[key]}: {states[key].text}\n         to make it again: {results.remake(key)}"
    if not results.is_run_alive and any(states[key].state not in SETTLED for key in results.requested):
        plan = f"`coevolve plan --suite {shlex.quote(results.name)}` estimates its hours."
        yield f"No run is active; to continue: {results.command()}" if results.record else f"No run yet; {plan}"
    if states.get(results.plan.products["page"].key, JobStatus(JobState.TODO)).state is JobState.DONE:
        yield f"Report page: {results.plan.page}"


def _counts(results: SuiteState, states: Mapping[str, JobStatus], machine: Machine | None) -> Iterator[str]:
    """The number of jobs in each state, and the time left; of the last run, and of the suite where that has more."""
    requested = Counter(states[key].state for key in results.requested)
    left = ""
    if machine and results.record and not requested.keys() <= {*SETTLED}:
        left = f"; {job_text.about(results.seconds_left(machine, results.record, states))} left"
    yield f"Suite {results.plan.suite.suite}: {_in_words(requested)}{left}."
    if len(results.requested) < len(results.jobs):
        whole = _in_words(Counter(job.state for job in states.values()))
        yield f"These are the jobs of the last run; of the whole suite {whole}."


def _in_words(numbers: Counter[JobState]) -> str:
    """The number of jobs in each state."""
    others = [f"{numbers[state]} {state}" for state in JobState if state is not JobState.DONE and numbers[state]]
    return ", ".join([f"{numbers[JobState.DONE]} of {numbers.total()} jobs are done", *others])


def _is_locked(path: Path) -> bool:
    """Whether a process holds an exclusive lock on a file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or a file system without locks
        return False
    return False
