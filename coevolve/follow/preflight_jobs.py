"""Submits the preflight jobs of a run and waits for them: nothing else is submitted before they have passed.

What has passed is noted in the site, so that a resumed run does not repeat it; what they measured becomes constants of
the plan there.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coevolve.assets import images
from coevolve.config.derived.sizes import job_resources, parameter_count
from coevolve.config.loading import SITE, read_machine
from coevolve.config.machine import JobResources, Machine
from coevolve.config.restriction import digest
from coevolve.config.suite import Suite
from coevolve.config.yaml_files import extended_files
from coevolve.errors import UserError
from coevolve.follow import site
from coevolve.pipeline.machine import partition
from coevolve.report.costs import BYTES_A_WEIGHT
from coevolve.storage import files

#: Minutes after which Slurm ends a preflight job. It takes two; imports from a cold shared disk may take longer.
MINUTES = 5
#: Seconds between two looks at the jobs.
SECONDS = 0.5


@dataclass(frozen=True)
class NodeCheck:
    """The check of one image on one kind of node, with the resources of its largest job there."""

    image: str
    resources: JobResources
    partition: str | None

    @property
    def name(self) -> str:
        """Such as `train-4gpu` or `envs-cpu`."""
        return f"{self.image}-{f'{self.resources.gpus}gpu' if self.resources.gpus else 'cpu'}"

    def command(self, machine: Machine, shell: str) -> list[str]:
        """The call of srun that runs a shell command on such a node."""
        needs = self.resources
        options = {
            "job-name": "coevolve_preflight",
            "comment": f"preflight_{self.name}",
            "nodes": 1,
            "ntasks": 1,
            "cpus-per-task": needs.cpus,
            "mem": f"{int(1000 * needs.memory_gb)}M",
            "time": MINUTES,
            "partition": self.partition,
            "account": machine.account,
            "qos": machine.qos,
            "gpus": needs.gpus and ":".join([*([machine.gpu] if machine.gpu else []), str(needs.gpus)]),
        }
        given = [f"--{name}={value}" for name, value in options.items() if value]
        return ["srun", *given, *shlex.split(machine.extra), "bash", "-c", shell]

    def digest(self, machine: Machine) -> str:
        """Changes with the image or the packages, and with what is requested."""
        image = images.named([self.image])[self.image].sha256 if machine.containers else ""
        packages = files.sha256(images.packages_lock(self.image))
        return digest([image, packages, self.command(machine, "")])


def needed(machine: Machine, stages: Mapping[str, str]) -> list[NodeCheck]:
    """The checks for the stages of a run that Slurm runs, by image and kind of node; `stages`: the image of each."""
    largest: dict[tuple[str, str | None, bool], JobResources] = {}
    for stage, image in sorted(stages.items()):
        needs = job_resources(machine, stage)
        if needs.local or not image:
            continue
        key = image, partition(machine, needs.gpus), needs.gpus > 0
        largest[key] = max(largest.get(key, needs), needs, key=lambda each: (each.gpus, each.cpus, each.memory_gb))
    checks = [NodeCheck(image, needs, name) for (image, name, _), needs in largest.items()]
    return [check for check in checks if machine.preflight.get(check.name) != check.digest(machine)]


def run(
    checks: Sequence[NodeCheck], machine: Machine, suite: Suite, logs: Path, shell: Callable[[NodeCheck], str]
) -> None:
    """Run the checks side by side, and note in the site that they passed and what they measured.

    `shell` gives the command of a check on its node. Raises `UserError` with the sentence of the first that failed.
    """
    logs.mkdir(parents=True, exist_ok=True)
    # In an allocation srun would start a step of it.
    variables = {
        k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SRUN_", "SBATCH_")) or k == "SLURM_CONF"
    }
    started: list[tuple[NodeCheck, subprocess.Popen[str]]] = []
    try:
        for check in checks:
            with (logs / f"{check.name}.log").open("w") as log:
                command = check.command(machine, shell(check))
                started.append((check, subprocess.Popen(command, stdout=log, stderr=log, env=variables, text=True)))
        while any(process.poll() is None for _, process in started) and not _failed(started):
            time.sleep(SECONDS)  # one may fail while another waits in the queue for hours
        failed = _failed(started)
    finally:
        for _, process in started:
            process.terminate()  # srun cancels its job, queued or running
            process.wait()
    if failed:
        raise UserError(_sentence(failed[0], logs / f"{failed[0].name}.log"))
    printed = [line for check in checks for line in _lines(logs / f"{check.name}.log") if line.startswith("{")]
    largest = BYTES_A_WEIGHT * max(map(parameter_count, suite.models.values()))
    reading = largest / 1e6 / min(json.loads(line)["read_mb_a_second"] for line in printed)
    site.add_measured({check.name: check.digest(machine) for check in checks}, constants(reading))


def _failed(started: Sequence[tuple[NodeCheck, subprocess.Popen[str]]]) -> list[NodeCheck]:
    return [check for check, process in started if process.poll()]


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines() or ["srun printed nothing"]


def _sentence(check: NodeCheck, log: Path) -> str:
    """The sentence of a failed check: the doctor's line without its status, else what srun printed last."""
    lines = _lines(log)
    wrong = [line.split(maxsplit=1)[1] for line in lines if line.startswith(("wrong ", "missing "))]
    return f"preflight {check.name}: {[*lines, *wrong][-1]} No other job was submitted; log: {log}."


def constants(reading: float) -> dict[str, float | dict[str, float]]:
    """The plan's constants with this site's seconds of reading a policy in place of the extended machine's."""
    base = read_machine(extended_files(SITE)[0]).costs
    reading = float(f"{reading:.3g}")  # of a tiny model a fraction of a millisecond
    startup = {"startup_seconds": max(base.startup_seconds - base.reading_weights_seconds, 0) + reading}
    ends = {name: startup for name in ("fast", "slow") if "startup_seconds" in getattr(base, name)}
    return {**startup, "reading_weights_seconds": reading, **ends}
