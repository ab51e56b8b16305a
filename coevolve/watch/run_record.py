"""The record of a run, which Snakemake writes at the start and `coevolve status` reads."""

from __future__ import annotations

import itertools
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from coevolve.pipeline.stage import PlannedJob
from coevolve.records.base import Record
from coevolve.storage import files

#: The file of the record in the folder of a suite's results.
NAME = ".run.json"
#: Snakemake's options that make finished jobs again, alone and with values.
_FORCE, _FORCE_THESE = ("-F", "--forceall", "-f", "--force"), ("-R", "--forcerun")


def without(words: Sequence[str], flags: Sequence[str], lists: Sequence[str]) -> list[str]:
    """The words of a command line without some options: flags, and `lists` with the values that follow them."""
    kept, is_value = [], False
    for word in words:
        name = word.partition("=")[0]
        is_value = name in lists if word.startswith("-") else is_value
        if not is_value and name not in flags:
            kept.append(word)
    return kept


class RunRecord(Record):
    """The last run of a suite. `command` continues it; `started` is in seconds since 1970.

    `slots`: cores of this computer, or jobs that a `cluster` takes at a time. `jobs` are all that the targets need,
    by their keys, those that were done before included; `todo` are the numbers of those that the run has to make.
    """

    command: str
    machine: str
    overrides: list[str]
    cluster: bool
    slots: int
    started: float
    jobs: list[str]
    todo: list[int]

    @classmethod
    def of(cls, workflow: Any, jobs: Mapping[PlannedJob, Any], machine: str, overrides: list[str]) -> RunRecord:
        """The record of a run that starts now: Snakemake's `workflow`, and its jobs by the plan's."""
        settings, todo = workflow.resource_settings, set(workflow.dag.needrun_jobs())
        return cls(
            command=shlex.join(["snakemake", *without(sys.argv[1:], _FORCE, _FORCE_THESE)]),
            machine=machine,
            overrides=overrides,
            cluster=not workflow.local_exec,
            slots=(settings.cores if workflow.local_exec else settings.nodes) or 1,
            started=time.time(),
            jobs=[job.key for job in jobs],
            todo=[number for number, job in enumerate(jobs.values()) if job in todo],
        )

    @property
    def options(self) -> str:
        """The command without targets and without a restriction to some rules."""
        words = itertools.takewhile(lambda word: word != "--", shlex.split(self.command))
        return shlex.join(without([*words], [], ["-U", "--until", "--allowed-rules"]))

    def write(self, home: str) -> None:
        """Write the record to the folder of the suite's results."""
        files.write_bytes(Path(home, NAME), self.to_json().encode() + b"\n")

    @classmethod
    def read(cls, home: str) -> RunRecord | None:
        """The record in the folder of a suite's results; None without a run by this version of the kit."""
        try:
            return cls.from_json(Path(home, NAME).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
