"""The cost model's constants on this computer, fitted to what the jobs of a small suite took on it."""

from __future__ import annotations

import json
import logging
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coevolve.config.loading import SITE, load_suite
from coevolve.config.machine import Machine
from coevolve.config.suite import Suite
from coevolve.errors import UserError
from coevolve.follow import estimates
from coevolve.follow.run_record import RunRecord
from coevolve.pipeline import devices, in_process
from coevolve.pipeline.job_file import JobFile, planned_file
from coevolve.pipeline.machine import load_machine
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stage import PlannedJob
from coevolve.pipeline.suite_files import paths_of
from coevolve.records.base import Record
from coevolve.shipped import shipped_file
from coevolve.storage import files, provenance

#: Constants by the part of a job whose time they decide; the others stay what they are.
PARTS = {"start": ("startup_seconds",), "training": ("training",), "playing": ("reading", "writing")}
#: What was measured, with the processor on which it was; the suite, and the machine whose constants are scaled.
FILE, SUITE, MACHINE = Path(".cache/calibration.json"), Path("configs/parts/calibration.yaml"), "cpu"
NAMED = "suite=calibration"


class Calibration(Record):
    """Measured over predicted seconds by part of a job, and seconds of every job outside of its stage."""

    processor: str
    factors: dict[str, float]
    job_seconds: float

    def __str__(self) -> str:
        parts = ", ".join(f"{name} x {factor:.2g}" for name, factor in self.factors.items() if factor)
        return f"calibrated on this computer: {parts}, {self.job_seconds:.2g} s for each job"


def machine_at_hand(suite: Suite) -> str:
    """The machine of the suite's last run, that of `make cluster`, or this computer; raises `UserError` for none."""
    if record := RunRecord.read(Plan(suite).home):
        return record.machine
    if SITE.exists():
        return str(SITE)
    if Path("/dev/nvidiactl").exists():
        raise UserError("this computer has GPUs; name a machine of configs/machines: --machine NAME.")
    return MACHINE if all(model.tiny for model in suite.models.values()) else "cpu_pretrained"


def calibrated(machine: Machine) -> tuple[Machine, Calibration | None]:
    """A machine without GPUs with the constants of this computer, if it was calibrated; else the machine as it is."""
    if machine.gpus_per_node or not FILE.exists():
        return machine, None
    made = Calibration.from_json(FILE.read_bytes())
    if made.processor != devices.processor():
        return machine, None
    costs = scaled(machine, made.factors).costs.model_copy(update={"job_seconds": made.job_seconds})
    return machine.model_copy(update={"costs": costs}), made


def calibrate() -> Calibration:
    """Run the small suite in a temporary folder, fit the constants, and keep them for `calibrated`."""
    machine = load_machine(MACHINE)
    logging.getLogger("coevolve").setLevel(logging.WARNING)  # the jobs' progress
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(load_suite(shipped_file(SUITE), [NAMED]), shards=machine.shards, root=folder)
        records = paths_of(plan.records(plan.suite.methods, every_model=True))
        in_process.make(plan, records, threads=1)
        jobs = [job for job in plan.jobs(records) if plan.workload(job).starts]
        took = np.array([estimates.measured(job, "cpu_seconds") for job in jobs])
        made = Calibration(
            processor=devices.processor(),
            factors=fit(plan, machine, jobs, took),
            job_seconds=_job_seconds(plan),
        )
    FILE.parent.mkdir(exist_ok=True)
    files.write_bytes(FILE, made.to_json().encode())
    return made


def fit(plan: Plan, machine: Machine, jobs: Sequence[PlannedJob], measured: np.ndarray) -> dict[str, float]:
    """Factors by part with which the predicted seconds of the jobs come closest to the measured ones.

    Least squares, no factor negative; a job's error counts by the root of its length.
    """
    from scipy.optimize import nnls

    before = predicted(plan, machine, jobs)
    slower = (scaled(machine, {name: 2.0}) for name in PARTS)
    matrix = np.stack([predicted(plan, each, jobs) - before for each in slower], axis=1)
    weight = 1 / np.sqrt(measured)
    factors, _ = nnls(matrix * weight[:, None], (measured - before + matrix.sum(axis=1)) * weight)
    return dict(zip(PARTS, map(float, factors), strict=True))


def predicted(plan: Plan, machine: Machine, jobs: Sequence[PlannedJob]) -> np.ndarray:
    """Estimated seconds of each job."""
    return np.array([estimates.cost(plan, machine, job).seconds for job in jobs])


def scaled(machine: Machine, factors: dict[str, float]) -> Machine:
    """The machine with the time of each part of a job multiplied; a part with factor 0 was not measured."""
    costs = machine.costs.model_dump()
    for name, factor in factors.items():
        for key in PARTS[name] if factor else ():
            costs[key] = costs[key] * factor if name == "start" else costs[key] / factor
    return machine.model_copy(update={"costs": machine.costs.model_copy(update=costs)})


def _job_seconds(plan: Plan) -> float:
    """CPU seconds of a job's process outside of its stage: the job that makes pairs, as Snakemake runs it."""
    job = next(job for name in plan.suite.methods for _, each in plan.iterations(name) for job in each.pairs.values())
    JobFile.of(plan, job).write(file := planned_file(job))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "coevolve", "job", str(file)], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent - float(json.loads(Path(job[provenance.NAME]).read_text())["cpu_seconds"])
