"""Slurm's partitions and the GPUs of their nodes, as sinfo reports them."""

import re
import shutil
import subprocess
from dataclasses import dataclass

from coevolve.config.machine import Machine
from coevolve.errors import UserError

PROGRAMS = ("sbatch", "sinfo", "squeue", "scancel")
#: Folder of an sbatch that repeats submissions while the controller is busy.
SBATCH_FOLDER = "profiles/slurm/bin"
#: Slurm's tools retry for minutes while the controller is down.
TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class Partition:
    """A partition; `gpus` is the largest number per node of each GPU type ("" for a type without a name)."""

    name: str
    default: bool
    up: bool
    gpus: dict[str, int]


def programs() -> str:
    """Names of Slurm's commands; raises `UserError` if some are not on PATH."""
    if missing := [name for name in PROGRAMS if not shutil.which(name)]:
        raise UserError(
            f"{', '.join(missing)} not on PATH; run on a login node. Without Slurm: `snakemake --profile one-gpu`, or"
            " `--profile one-node` with several GPUs."
        )
    return ", ".join(PROGRAMS)


def partitions() -> list[Partition]:
    """All partitions that sinfo lists; raises `UserError` if it fails."""
    command = ["sinfo", "--noheader", "--format=%P|%a|%G"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"sinfo failed ({error}); ask the cluster's administrators.") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise UserError(f"sinfo failed ({reason}); ask the cluster's administrators.")
    return parse(done.stdout)


def parse(text: str) -> list[Partition]:
    """The partitions in the output of `sinfo --format='%P|%a|%G'`, which has a line for each kind of node."""
    partitions: dict[str, Partition] = {}
    for line in text.splitlines():
        field, state, resources = (field.strip() for field in line.split("|", 2))
        name = field.removesuffix("*")  # marks the default partition
        gpus = dict(partitions[name].gpus) if name in partitions else {}
        for kind, count in re.findall(r"\bgpu(?::([^:,()]+))?:(\d+)", resources):
            gpus[kind] = max(int(count), gpus.get(kind, 0))
        partitions[name] = Partition(name, field.endswith("*"), state == "up", gpus)
    return list(partitions.values())


def partition(machine: Machine, known: list[Partition]) -> Partition:
    """The partition that jobs are submitted to, of several that is up the one with the most GPUs.

    Raises `UserError` if one does not exist or none is up.
    """
    names = ", ".join(sorted(each.name for each in known)) or "none"
    wanted = machine.partition.split(",") if machine.partition else []
    missing = [f"`{name}`" for name in wanted if name not in {each.name for each in known}]
    chosen = [each for each in known if (each.name in wanted if wanted else each.default)]
    if missing or not chosen:
        raise UserError(
            f"Slurm has no {', '.join(missing) or 'default partition'}; set `partition` to one of: {names}."
        )
    up = [each for each in chosen if each.up]
    if not up:
        text = ", ".join(f"`{each.name}`" for each in chosen)
        raise UserError(f"{text} is not up; set `partition` to one of {names}, or wait.")
    return max(up, key=lambda each: _count(machine, each))


def _count(machine: Machine, partition: Partition) -> int:
    """The GPUs per node of the machine's type."""
    return partition.gpus.get(machine.gpu, 0) if machine.gpu else max(partition.gpus.values(), default=0)


def gpu(machine: Machine, partition: Partition, needed: int) -> str:
    """The GPUs that jobs may request; raises `UserError` if no node has that type or `needed` of them."""
    if not needed:
        return "no stage requests one"
    kinds = ", ".join(f"{kind or 'unnamed'} x {count}" for kind, count in sorted(partition.gpus.items())) or "none"
    available = _count(machine, partition)
    if available < needed:
        raise UserError(
            f"a stage requests {needed} x {machine.gpu or 'GPU'} per node, those of `{partition.name}` have {kinds};"
            " set `partition`, `gpu` (null: of any type) or `gpus`."
        )
    return f"{available} x {machine.gpu or 'GPU'} per node in `{partition.name}`"
