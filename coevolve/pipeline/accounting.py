"""Slurm's accounting, as `sacct` reports it: the attempts of a run's jobs, their waiting time and their GPU-hours."""

import re
import shutil
import subprocess
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

#: Names of jobs that the profile `slurm` submits: `slurm-jobname-prefix`, and the identifier of the run.
RUN = re.compile(r"coevolve_[0-9a-f-]+")
FIELDS = ("JobIDRaw", "JobName", "State", "Submit", "Start", "ElapsedRaw", "AllocTRES")
#: Job numbers in one command: a word of a command line may have 128 KiB.
NUMBERS = 10_000
#: A database that does not answer must not hold up a report.
TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Attempt:
    """One start of a Slurm job, or a cancelled one that never started; a requeued job has several.

    `waited` and `seconds`: in the queue and running; `gpus`: of all its nodes.
    """

    job: str
    name: str
    state: str
    submitted: str
    waited: float
    seconds: float
    gpus: int


def attempts(jobs: Collection[str]) -> list[Attempt]:
    """All attempts of the runs that submitted these Slurm jobs, given by their numbers.

    Empty where there is no `sacct`, or no accounting database.
    """
    numbers = sorted(jobs)
    chunks = [numbers[start : start + NUMBERS] for start in range(0, len(numbers), NUMBERS)]
    known = [attempt for chunk in chunks for attempt in _ask("--jobs", ",".join(chunk))]
    runs = {attempt.name for attempt in known if RUN.fullmatch(attempt.name)}
    if not runs:
        return []
    since = min(attempt.submitted for attempt in known if attempt.name in runs)
    return _ask("--name", ",".join(sorted(runs)), "--starttime", since, "--duplicates")


def parse(text: str) -> list[Attempt]:
    """The attempts in the output of `sacct --parsable2 --noheader --allocations` with `FIELDS`."""
    parsed = []
    for line in text.splitlines():
        job, name, state, submit, start, elapsed, resources = line.split("|")
        waited = 0.0
        with suppress(ValueError):  # "Unknown" or "None" before it starts
            waited = (datetime.fromisoformat(start) - datetime.fromisoformat(submit)).total_seconds()
        gpus = re.search(r"\bgres/gpu=(\d+)", resources)
        parsed.append(Attempt(job, name, state.split()[0], submit, waited, float(elapsed), int(gpus[1]) if gpus else 0))
    return parsed


def _ask(*selection: str) -> list[Attempt]:
    """The attempts that sacct reports; none if it fails."""
    if not shutil.which("sacct"):
        return []
    command = ["sacct", *selection, "--allocations", "--parsable2", "--noheader", f"--format={','.join(FIELDS)}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse(done.stdout) if done.returncode == 0 else []
