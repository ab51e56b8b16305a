"""Checks, within seconds, of whether this machine can run a suite."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from coevolve.assets import images
from coevolve.assets.checks import Check, run_check
from coevolve.config.loading import SITE, load_suite
from coevolve.config.machine import Machine, job_resources
from coevolve.config.suite import Suite
from coevolve.envs.registry import check
from coevolve.envs.section import known_kinds
from coevolve.errors import UserError
from coevolve.pipeline import devices, required_files
from coevolve.pipeline.machine import load_machine
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stage import MIRROR
from coevolve.storage import origin
from coevolve.watch import estimates, slurm
from coevolve.watch.disk import disk as disk_of_run

LOCK = Path("requirements.lock")
RESULTS = Path("results")
_OTHER_MACHINE = "name another of `ls configs/machines` with `--machine`, and to Snakemake with `--config machine=`"
_OTHER_ENGINE = "run `make cluster`, or with `--config 'sampler={engine: transformers}' 'grpo={engine: null}'`"
_CPU_BUILD = "it is a build for CPUs: run `rm -rf .venv`, then `make cluster` on the login node or `make setup`"
_CPU_IMAGE = "the image has a build for CPUs: build it again without `--torch` (containers/README.md)"
#: Free space that every run needs, in GB (1e9 bytes).
MINIMUM_GB = 1.0


@dataclass(frozen=True)
class RunSetup:
    """What is checked: this machine, the plan of a suite on it and the machine config where they are given.

    `suite_name`: the name or path by which the suite was given; `on_slurm`: the machine is that of `make cluster`.
    """

    plan: Plan | None
    machine: Machine | None
    suite_name: str = ""
    on_slurm: bool = False

    @classmethod
    def of(cls, suite: str | None, overrides: Sequence[str], machine: str | None) -> RunSetup:
        """The setup of a command line."""
        plan = Plan.on(load_suite(suite, overrides), machine) if suite else None
        return cls(plan, load_machine(machine) if machine else None, suite or "", machine == str(SITE))

    @property
    def suite(self) -> Suite | None:
        """The suite."""
        return self.plan.suite if self.plan else None

    @property
    def contained(self) -> bool:
        """Whether jobs run in images."""
        return self.machine is not None and self.machine.containers

    @property
    def gigabytes(self) -> float:
        """The estimated size of the results that do not exist yet, in GB (1e9 bytes), and at least `MINIMUM_GB`.

        With pruned weights it is at most what a run on one node holds at any time. An environment without `expected`
        has no estimate.
        """
        if self.plan and self.machine:
            with contextlib.suppress(UserError):
                costs = [estimates.cost(self.plan, self.machine, job) for job in self.plan.jobs()]
                missing = sum(cost.bytes for cost in costs if cost.measured is None)
                return max(min(missing, disk_of_run(self.plan, self.machine).peak) / 1e9, MINIMUM_GB)
        return MINIMUM_GB

    @property
    def gpus(self) -> int:
        """The most GPUs that a job of the suite requests on a node, or that any stage requests if there is no suite."""
        if not self.machine:
            return 0
        stages = {job.stage.name for job in self.plan.jobs()} if self.plan else {*self.machine.stages}
        return max((job_resources(self.machine, stage).gpus for stage in stages), default=0)


def run_checks(setup: RunSetup) -> Iterator[Check]:
    """The results of all checks as they are made, quick checks first; a failed check does not raise."""
    yield packages()
    yield from disks(setup)
    if setup.machine:
        yield from machine(setup.machine, setup.gpus, on_slurm=setup.on_slurm)
    if setup.contained or images.LOCK.exists():
        yield from required_files.image_checks()
    if setup.suite:
        yield from required_files.verify(setup.suite, setup.suite_name, thorough=False)
        if setup.suite.sampler.engine == "vllm" and not setup.contained:
            yield run_check("vLLM", _vllm)
    if not setup.contained:  # the images have the environments of their jobs
        yield from environments(setup.suite)


def packages(lock: Path = LOCK) -> Check:
    """Whether the installed packages are those of the lock."""
    if not lock.is_file():
        return Check("packages", "missing", f"{lock} does not exist; run in the repository's folder.")
    pinned = dict(line.split("==", 1) for line in lock.read_text(encoding="utf-8").splitlines() if "==" in line)
    installed = {name: _version(name) or "nothing" for name in pinned}
    wrong = [f"{name} {installed[name]} for {pin}" for name, pin in pinned.items() if installed[name] != pin]
    if wrong:
        return Check("packages", "wrong", f"{', '.join(wrong[:5])} ({len(wrong)} in all); {_fix()}.")
    return Check("packages", "ok", f"{len(pinned)} as in {lock}")


def _fix() -> str:
    """What puts the locked packages in place of those that are found."""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if shadowing := [folder for folder in folders if folder and any(Path(folder).glob("*-info"))]:
        return f"PYTHONPATH puts those of {', '.join(shadowing)} before the environment's; run `unset PYTHONPATH`"
    activate = "" if Path(sys.prefix) == Path(".venv").resolve() else " and `source .venv/bin/activate`"
    return f"run `make -B setup`{activate}"


def disks(setup: RunSetup) -> Iterator[Check]:
    """The checks of the disks of results, of what is downloaded, and of temporary files."""
    yield disk(Path(setup.plan.home) if setup.plan else RESULTS, setup.gigabytes)
    yield disk(Path(MIRROR), MINIMUM_GB)
    yield scratch()


def disk(folder: Path, gigabytes: float) -> Check:
    """Whether `folder`, or its nearest existing parent, is writable and has `gigabytes` (1e9 bytes) free."""
    name, existing = f"disk of {folder}", folder
    while not existing.exists():
        if existing.is_symlink():
            return Check(name, "wrong", f"{existing} links to {existing.readlink()}, which does not exist; make it.")
        existing = existing.parent
    free = shutil.disk_usage(existing).free / 1e9
    if free < gigabytes:
        return Check(name, "wrong", f"{free:.1f} GB free, {gigabytes:.1f} GB needed; make room or link it elsewhere.")
    try:
        # Only a write detects a quota or a read-only mount.
        with tempfile.NamedTemporaryFile(dir=existing) as file:
            file.write(bytes(1 << 20))
    except OSError as error:
        return Check(name, "wrong", f"no file can be written ({error.strerror}); make room or link it elsewhere.")
    return Check(name, "ok", f"{free:.0f} GB free")


def scratch() -> Check:
    """Whether the folder of temporary files exists here and is writable; Python would silently take another one."""
    folder = Path(os.environ.get("TMPDIR") or "/tmp")
    if folder.is_dir():
        return disk(folder, MINIMUM_GB)
    problem = f"`TMPDIR` names it, but it does not exist on {socket.gethostname()}; make it on every node, or unset it."
    return Check(f"disk of {folder}", "missing", problem)


def machine(machine: Machine, gpus: int, *, on_slurm: bool) -> Iterator[Check]:
    """Whether the launch file exists, and `gpus` GPUs here, or the commands of Slurm and a build of torch for GPUs."""
    if machine.launch and not Path(machine.launch).is_file():
        yield Check("launch", "missing", f"{machine.launch} does not exist; correct `launch`.")
    if not on_slurm:
        yield run_check("GPU", lambda: gpu(gpus))
        return
    if gpus and not machine.containers and not devices.on_cpus():
        yield run_check("PyTorch", _cuda_build)
    yield run_check("Slurm", slurm.programs)


def gpu(needed: int) -> str:
    """The GPUs that torch sees; raises `UserError` if they are fewer than `needed`."""
    if not needed:
        return "no stage requests one"
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        raise UserError("torch is not installed, so none is visible; run `make -B setup`.") from None
    visible = torch.cuda.device_count()
    if visible < needed:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = "" if shown is None else f" with CUDA_VISIBLE_DEVICES={shown}"
        fix = _OTHER_MACHINE if shown is None else f"unset that variable, or {_OTHER_MACHINE}"
        if str(torch.__version__).endswith("+cpu"):
            fix = _CPU_IMAGE if origin.container() else _CPU_BUILD
        raise UserError(f"torch {torch.__version__} sees {visible}{hidden}, a stage needs {needed}; {fix}.")
    return f"{visible} x {torch.cuda.get_device_name(0)}"


def _cuda_build() -> str:
    """The version of torch; raises `UserError` if it is a build for CPUs. Its import would take seconds."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise UserError("not installed; run `make -B setup`.") from None
    if version.endswith("+cpu"):
        raise UserError(f"torch {version} sees no GPU; {_CPU_BUILD}.")
    return version


def environments(suite: Suite | None, *, start: bool = False) -> Iterator[Check]:
    """The checks of the suite's environments, or of all if there is no suite, in the order of their kinds.

    `start`: what a check would only look for is started.
    """
    sections = list(suite.envs.values()) if suite else []
    for kind in sorted({section.kind for section in sections}) if suite else known_kinds():
        section = next((section for section in sections if section.kind == kind), None)
        if checked := check(kind, section, start=start):
            yield checked


def _vllm() -> str:
    folders = [str(path) for path in images.environment("sample").glob("lib/python*/site-packages")]
    vllm = next(iter(metadata.distributions(name="vllm", path=folders)), None) if folders else None
    if (version := vllm.version if vllm else _version("vllm")) is None:
        raise UserError(f"not installed, but the suite plays with it; {_OTHER_ENGINE}.")
    return version


def _version(name: str) -> str | None:
    """The installed version without its local part, such as `+cpu`; None if the package is not installed."""
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        return None
