"""The output of a run: a line for each finished job, and the error of each failed one.

It reads Snakemake's log records, which `snakemake_logger_plugin_coevolve` hands over. Snakemake's own log file keeps
everything.
"""

import logging
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from snakemake_interface_logger_plugins.common import LogEvent

from coevolve import escaping
from coevolve.errors import suggestion
from coevolve.pipeline.machine import load_machine
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.registry import STAGES
from coevolve.pipeline.stage import PlannedJob
from coevolve.pipeline.targets import targets
from coevolve.watch import estimates, job_text
from coevolve.watch.forecast import Forecast
from coevolve.watch.pruning import Pruning
from coevolve.watch.run_record import RunRecord

NOTHING = "Nothing to be done"
#: Messages of Snakemake, below the level of a warning, that a user needs.
SHOWN = (NOTHING, "Terminating processes", "Will exit after finishing", "Shutting down", "Unlocking")
#: Errors that repeat the lines of the failed jobs.
REPEATED = (
    "Exiting because a job execution failed",
    "WorkflowError:\nAt least one job did not complete",
    "RuleException",
)
#: How the Slurm executor says that it could not submit a job, and why.
NOT_SUBMITTED = re.compile(
    r"(?:SLURM sbatch failed\. The error message was '|Job submission failed with exception: )(.*?)('\.\n|\Z)",
    re.DOTALL,
)


class RunLog:
    """Writes a run's progress to stderr: `receive` takes Snakemake's log records, `begin` the jobs of the run."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._forecast: Forecast | None = None
        self._pruning: Pruning | None = None
        self._jobs: dict[int, PlannedJob] = {}
        self._started: dict[str, float] = {}
        self._failed: dict[str, str] = {}
        self._todo: set[str] = set()
        self._total, self._cluster, self._begun = 0, False, 0.0

    def begin(self, record: RunRecord, pruning: Pruning | None = None) -> None:
        """Take the jobs of the run, and print how many there are; prune what none of them reads."""
        todo = [job for number in record.todo if (job := self._plan.by_key(record.jobs[number]))]
        machine = load_machine(record.machine)
        self._forecast = Forecast.of(self._plan, machine, todo, record.slots, cluster=record.cluster)
        self._todo, self._total = {job.key for job in todo}, len(record.jobs)
        self._cluster, self._begun = record.cluster, time.monotonic()
        if todo:
            left = job_text.about(self._forecast.whole)
            done = f", {self._total - len(todo)} are done" if len(todo) < self._total else ""
            _write(f"Suite {self._plan.suite.suite}: {self._total} jobs{done}; {left} left.")
        self._pruning = pruning
        self.prune()

    def prune(self) -> None:
        """Prune all policies that no job will read, with a line for each."""
        for line in self._pruning.sweep() if self._pruning else ():
            _write(line)

    def receive(self, record: logging.LogRecord) -> None:
        """Write the part of one record that a user needs."""
        fields = vars(record)
        match fields.get("event"):
            case LogEvent.JOB_INFO if fields["rule_name"] in STAGES:
                job = self._plan.of_rule(fields["rule_name"], dict(fields["wildcards"]))
                self._jobs[fields["jobid"]] = job
                self._started[job.key] = time.monotonic()
            case LogEvent.JOB_FINISHED if fields["job_id"] in self._jobs:
                self._finished(self._jobs[fields["job_id"]])
            case LogEvent.JOB_ERROR:
                self._job_failed(fields)
            case LogEvent.ERROR:
                self._error(record.getMessage())
            case None:
                self._message(record)

    def _finished(self, job: PlannedJob) -> None:
        key = job.key
        seconds = time.monotonic() - self._started.pop(key)
        if self._cluster:  # without the time in the queue
            seconds = estimates.measured(job) or seconds
        self._todo.discard(key)
        self._failed.pop(key, None)
        label = job_text.job_label(self._plan.suite, job)
        source = estimates.reused_from(job)
        took = f"reused from {source}" if source else job_text.clock(seconds)
        _write(f"{label}  {took}  [{self._progress()}]")
        for line in self._pruning.after(job) if self._pruning else ():
            _write(line)

    def _progress(self) -> str:
        """Done and all jobs, and the estimated time to the end."""
        count = f"{self._total - len(self._todo)}/{self._total}"
        if not self._todo or not self._forecast:
            return count
        now = time.monotonic()
        running = {key: now - started for key, started in self._started.items()}
        todo = self._todo - self._forecast.blocked(self._failed)
        left = self._forecast.remaining(now - self._begun, running, todo)
        return f"{count}, {job_text.about(left)} left"

    def _job_failed(self, fields: dict[str, Any]) -> None:
        """Print the error of a failed job, and the paths of its logs with text; one that was not submitted has none."""
        job, message = self._jobs.get(fields["jobid"]), str(fields.get("rule_msg") or "")
        label = job_text.job_label(self._plan.suite, job) if job else str(fields["rule_name"])
        refused = NOT_SUBMITTED.match(message)
        paths = [] if refused else [path for path in map(Path, fields["log"]) if path.is_file() and path.stat().st_size]
        sentences = (sentence for path in paths if (sentence := job_text.failure(path)))
        silent = f"it ended without an error message{'; see its log' if paths else ', and its log is empty'}."
        sentence = " ".join(refused[1].split()) if refused else next(sentences, message or silent)
        text = "\n".join([f"FAILED  {label}: {sentence}", *(f"        log: {path}" for path in paths)])
        if job:
            self._started.pop(job.key, None)
            self._failed[job.key] = f"        {label}: {', '.join(map(str, paths))}"
        _write(text)

    def _error(self, text: str) -> None:
        """Print an error of Snakemake's without its traceback; the last one of a run repeats the failed jobs."""
        if "At least one job did not complete" in text:
            self._summary()
        elif sentence := re.search(r"UserError: (.+)", text):
            _write(f"coevolve: {sentence[1]}")
        elif not text.startswith(REPEATED) and "CalledProcessError" not in text:
            where = re.compile(r"\s*File .*, line \d+|Traceback( \(most .*)?:$")  # in the code
            _write(self._with_suggestion("\n".join(line for line in text.splitlines() if not where.match(line))))

    def _summary(self) -> None:
        """Print how many jobs are done, and the logs of the failed ones again, which many lines may follow."""
        left = len(self._todo) - len(self._failed)
        counts = f"{self._total - len(self._todo)} of {self._total} jobs are done, {len(self._failed)} failed"
        _write(f"{counts}, {left} did not run. Correct the cause, then run the same command again.")
        for line in self._failed.values():
            _write(line)

    def _with_suggestion(self, text: str) -> str:
        """An error about an unknown target, with the known name that is most like it."""
        match = re.search(r"No rule to produce (\S+)", text)
        if not match:
            return text
        names = ["all", *STAGES, *(target.name for target in targets(self._plan))]
        name, suite = match[1], self._plan.suite.suite
        hint = suggestion(name, names) or f"; see `coevolve targets --suite {suite}`."
        return f"coevolve: suite `{suite}` has no target `{name}`{hint}"

    def _message(self, record: logging.LogRecord) -> None:
        """Print warnings, the kit's own messages, and Snakemake's messages about the end of a run."""
        text = record.getMessage()
        if restarted := re.fullmatch(r"Trying to restart job (\d+)\.", text):
            job = self._jobs.get(int(restarted[1]))
            if job:
                _write(f"        {job_text.job_label(self._plan.suite, job)}: runs again.")
        elif record.levelno >= logging.ERROR:
            self._error(text)
        elif record.levelno >= logging.WARNING or hasattr(record, "coevolve") or text.startswith(SHOWN):
            _write(text)
        if text.startswith(NOTHING) and (page := self._plan.page).exists():
            _write(f"Report page: {page}")


def _write(text: str) -> None:
    sys.stderr.write(f"{escaping.terminal(text)}\n")
    sys.stderr.flush()


def end_message(plan: Plan, files: Sequence[str], log: Sequence[str]) -> str:
    """The last lines of a successful run: Snakemake's log, and the report page or else the targets' `files`."""
    made = f"Made: {', '.join(files[:4])}{', ...' * (len(files) > 4)}"
    logs = [f"Snakemake's log: {os.path.relpath(path)}" for path in log]
    return "\n".join([*logs, f"Report page: {plan.page}" if str(plan.page) in files else made])
