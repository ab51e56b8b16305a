"""Whether this machine can run a suite: seconds of looking before hours of running."""

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from coevolve.assets import images
from coevolve.assets.checks import Check, run_check
from coevolve.config.environments import known_kinds
from coevolve.config.machine import Machine
from coevolve.config.suite import Suite, load_suite
from coevolve.envs.registry import Doctor, optional
from coevolve.errors import UserError
from coevolve.workflow import costs, required_files, slurm, stage_table
from coevolve.workflow.layout import MIRROR
from coevolve.workflow.plan import Plan

LOCK = Path("requirements.lock")
RESULTS = Path("results")
#: Below this a run ends before it has begun.
LEAST_GB = 1.0


@dataclass(frozen=True)
class Profile:
    """What a Snakemake profile says of suite and machine, and of how jobs are run."""

    suite: str | None
    machine: str | None
    slurm: bool
    containers: bool

    @classmethod
    def read(cls, name: str) -> Profile:
        """The profile of a name, found where Snakemake finds it; raises `UserError` if it is not there."""
        for folder in (Path(name), Path("profiles", name)):
            if (folder / "config.yaml").is_file():
                settings = _yaml(folder / "config.yaml")
                break
        else:
            raise UserError(f"profile `{name}`: no {name}/config.yaml here; run in the repository's folder.")
        chosen: dict[str, Any] = {}
        for file in settings.get("configfile", []):
            chosen |= _yaml(Path(file))
        chosen |= dict(item.split("=", 1) for item in settings.get("config", []))
        ways = settings.get("software-deployment-method", settings.get("sdm", []))
        return cls(chosen.get("suite"), chosen.get("machine"), settings.get("executor") == "slurm", "apptainer" in ways)


@dataclass(frozen=True)
class Patient:
    """What is looked at: nothing more than this machine where suite and machine are None.

    `gigabytes`: room that the results will take.
    """

    suite: Suite | None
    machine: Machine | None
    slurm: bool = False
    containers: bool = False
    gigabytes: float = LEAST_GB


def patient(suite: str | None, overrides: Sequence[str], machine: str | None, profile: str | None) -> Patient:
    """What the command line names; a profile's own suite and machine stand where it names none."""
    own = Profile.read(profile) if profile else Profile(None, None, slurm=False, containers=False)
    suite, machine = suite or own.suite, machine or own.machine
    loaded = load_suite(suite, overrides) if suite else None
    where = stage_table.load_machine(machine) if machine else None
    room = _room(loaded, where) if loaded and where else 0.0
    return Patient(loaded, where, own.slurm, own.containers, max(room, LEAST_GB))


def examine(patient: Patient) -> Iterator[Check]:
    """One check after the other, the quick ones first; none raises."""
    yield packages()
    yield disk(RESULTS, patient.gigabytes)
    yield from (disk(place, LEAST_GB) for place in (Path(MIRROR), Path(tempfile.gettempdir())))
    if patient.machine:
        yield from _machine(patient.machine, patient.slurm)
    if patient.containers or images.LOCK.exists():
        yield run_check("Apptainer", _apptainer)
        yield from required_files.image_checks()
    if patient.suite:
        yield from required_files.verify(patient.suite, thorough=False)
        if patient.suite.sampler.engine == "vllm" and not patient.containers:
            yield run_check("vLLM", _vllm)
    yield from _environments(patient.suite)


def packages(lock: Path = LOCK) -> Check:
    """Whether the packages installed here are those of the lock."""
    if not lock.is_file():
        return Check("packages", "missing", f"{lock} is not here; run in the repository's folder.")
    pinned = dict(line.split("==", 1) for line in lock.read_text(encoding="utf-8").splitlines() if "==" in line)
    found = {name: _version(name) for name in pinned}
    wrong = [f"{name} {found[name]} for {pinned[name]}" for name in pinned if found[name] not in (None, pinned[name])]
    missing = [name for name in pinned if found[name] is None]
    if wrong:
        return Check("packages", "wrong", f"{', '.join(wrong[:5])} ({len(wrong)} in all); run `make setup`.")
    if missing:
        return Check("packages", "missing", f"{', '.join(missing[:5])} ({len(missing)} in all); run `make setup`.")
    return Check("packages", "ok", f"{len(pinned)} as in {lock}")


def disk(folder: Path, gigabytes: float) -> Check:
    """Whether `folder`, or where it would be made, takes files, and has room for so many gigabytes (1e9 bytes)."""
    what, place = f"disk of {folder}", folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free / 1e9
    if free < gigabytes:
        return Check(what, "wrong", f"{free:.1f} GB free, {gigabytes:.1f} GB needed; make room or link it elsewhere.")
    try:
        # A quota or a read-only mount shows only when something is written.
        with tempfile.NamedTemporaryFile(dir=place) as file:
            file.write(bytes(1 << 20))
    except OSError as error:
        return Check(what, "wrong", f"it takes no file ({error.strerror}); make room or link it elsewhere.")
    return Check(what, "ok", f"{free:.0f} GB free")


def _room(suite: Suite, machine: Machine) -> float:
    """Gigabytes that the suite's results still to be made will take, by the cost model."""
    found = costs.jobs(Plan(suite, shards=machine.shards), machine)
    return sum(cost.bytes for _, _, cost in found if cost.measured is None) / 1e9


def _machine(machine: Machine, on_slurm: bool) -> Iterator[Check]:
    if machine.launch and not Path(machine.launch).is_file():
        yield Check("launch", "missing", f"{machine.launch} is not there; correct `launch`.")
    if not on_slurm:
        yield run_check("GPU", lambda: _gpu(machine))
        return
    commands = run_check("Slurm", slurm.programs)
    yield commands
    if commands.status == "ok":
        try:
            known = slurm.partitions()
        except UserError as error:
            yield Check("Slurm", "wrong", str(error))
            return
        yield (found := run_check("partition", lambda: slurm.partition(machine, known).name))
        if found.status == "ok":
            yield run_check("GPU", lambda: slurm.gpu(machine, slurm.partition(machine, known)))


def _gpu(machine: Machine) -> str:
    wanted = max((needs.gpus for needs in machine.stages.values()), default=0)
    if not wanted:
        return "no stage asks for one"
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        raise UserError("no torch, so none is seen; run `make setup`.") from None
    seen = torch.cuda.device_count()
    if seen < wanted:
        raise UserError(f"torch {torch.__version__} sees {seen}, a stage asks for {wanted}; choose another machine.")
    return f"{seen} x {torch.cuda.get_device_name(0)}"


def _apptainer() -> str:
    found = shutil.which("apptainer") or shutil.which("singularity")
    if not found:
        raise UserError("no `apptainer` on PATH, which images need; load its module, or run without `--sdm apptainer`.")
    return found


def _environments(suite: Suite | None) -> Iterator[Check]:
    """The checks of the suite's environments, without a suite of all environments, in the order of their kinds."""
    sections = list(suite.envs.values()) if suite else []
    for kind in sorted({section.kind for section in sections}) if suite else known_kinds():
        doctor: Doctor | None = optional(kind, "doctor")
        if doctor:
            yield doctor.check(next((section for section in sections if section.kind == kind), None))


def _vllm() -> str:
    if (found := _version("vllm")) is None:
        raise UserError("not installed, but the suite samples with it; use images, or set sampler.engine=transformers.")
    return found


def _version(name: str) -> str | None:
    """The version installed here, without the part that says for which device."""
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        return None


def _yaml(path: Path) -> dict[str, Any]:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (FileNotFoundError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not readable as YAML ({' '.join(str(error).split())}).") from None
