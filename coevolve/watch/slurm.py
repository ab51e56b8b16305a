"""Slurm's partitions and the nodes in them, as `sinfo` reports them; it leaves out those of other groups."""

import re
import shutil
import subprocess
from dataclasses import dataclass, replace

from coevolve.errors import UserError

PROGRAMS = ("sbatch", "sinfo", "squeue", "scancel")
#: Folder of an sbatch that repeats submissions while the controller is busy.
SBATCH_FOLDER = "profiles/slurm/bin"
#: Slurm's tools retry for minutes while the controller is down.
TIMEOUT_SECONDS = 10.0
SINFO = ("sinfo", "--noheader", "--exact", "--format=%P|%a|%G|%c|%m|%l|%D")


@dataclass(frozen=True)
class Nodes:
    """`count` nodes of one kind; `gpus`: of each, by type ("" for a type without a name)."""

    gpus: dict[str, int]
    cpus: int
    memory_gb: int
    count: int


@dataclass(frozen=True)
class Partition:
    """A partition with its kinds of nodes; `minutes`: its time limit, None for none."""

    name: str
    default: bool
    up: bool
    minutes: int | None
    nodes: tuple[Nodes, ...]

    @property
    def gpus(self) -> dict[str, int]:
        """The largest number per node of each GPU type."""
        kinds = {kind for nodes in self.nodes for kind in nodes.gpus}
        return {kind: max(nodes.gpus.get(kind, 0) for nodes in self.nodes) for kind in kinds}


def programs() -> str:
    """Names of Slurm's commands; raises `UserError` if some are not on PATH."""
    if missing := [name for name in PROGRAMS if not shutil.which(name)]:
        raise UserError(
            f"{', '.join(missing)} not on PATH; run on a login node. Without Slurm: `snakemake --profile one-gpu`, or"
            " `--profile one-node` with several GPUs."
        )
    return ", ".join(PROGRAMS)


def partitions() -> list[Partition]:
    """All partitions that sinfo lists; raises `UserError` if it fails or is not here."""
    programs()
    try:
        done = subprocess.run(SINFO, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{SINFO[0]} failed ({error}); ask the cluster's administrators.") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise UserError(f"{SINFO[0]} failed ({reason}); ask the cluster's administrators.")
    return parse(done.stdout)


def parse(text: str) -> list[Partition]:
    """The partitions in the output of `SINFO`, which has a line for each kind of node."""
    partitions: dict[str, Partition] = {}
    for line in text.splitlines():
        field, state, resources, cpus, memory, limit, count = (field.strip() for field in line.split("|"))
        gpus: dict[str, int] = {}
        for kind, number in re.findall(r"\bgpu(?::([^:,()]+))?:(\d+)", resources):
            gpus[kind] = max(int(number), gpus.get(kind, 0))
        # A number ends with `+` where nodes differ.
        nodes = Nodes(gpus, int(cpus.rstrip("+")), int(memory.rstrip("+")) // 1000, int(count))
        name = field.removesuffix("*")  # marks the default partition
        known = partitions.get(name, Partition(name, field.endswith("*"), state == "up", _minutes(limit), ()))
        partitions[name] = replace(known, nodes=(*known.nodes, nodes))
    return list(partitions.values())


def _minutes(limit: str) -> int | None:
    """Minutes of a time as Slurm writes it, `days-hours:minutes:seconds` or shorter; None for no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if match is None:  # infinite, UNLIMITED, n/a
        return None
    days, hours, minutes, _ = (int(part or 0) for part in match.groups())
    return max(1, (days * 24 + hours) * 60 + minutes)
