"""What Slurm says of itself: its partitions and the GPUs of their nodes."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass

from coevolve.config.machine import Machine
from coevolve.errors import UserError

PROGRAMS = ("sbatch", "sinfo", "squeue", "scancel")
#: Slurm's own tools retry for minutes while the controller is away.
SECONDS = 10.0


@dataclass(frozen=True)
class Partition:
    """A partition; `gpus`: the most of each type that one of its nodes has ("" for a type without a name)."""

    name: str
    default: bool
    up: bool
    gpus: dict[str, int]


def programs() -> str:
    """That Slurm's commands are here; raises `UserError` naming those that are not."""
    if missing := [name for name in PROGRAMS if not shutil.which(name)]:
        raise UserError(f"no {', '.join(missing)} on PATH; run on a login node, or with another profile.")
    return ", ".join(PROGRAMS)


def partitions() -> list[Partition]:
    """All partitions as sinfo gives them; raises `UserError` where Slurm does not answer."""
    command = ["sinfo", "--noheader", "--format=%P|%a|%G"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"sinfo gives no answer ({error}); ask whoever runs the cluster.") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise UserError(f"sinfo gives no answer ({reason}); ask whoever runs the cluster.")
    return parse(done.stdout)


def parse(text: str) -> list[Partition]:
    """The partitions in the output of `sinfo --format='%P|%a|%G'`, which has a line for each kind of node."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        name, state, resources = (field.strip() for field in line.split("|", 2))
        bare = name.removesuffix("*")
        gpus = dict(found[bare].gpus) if bare in found else {}
        for kind, count in re.findall(r"\bgpu(?::([A-Za-z][^:,()]*))?:(\d+)", resources):
            gpus[kind] = max(int(count), gpus.get(kind, 0))
        found[bare] = Partition(bare, name.endswith("*"), state == "up", gpus)
    return list(found.values())


def partition(machine: Machine, known: list[Partition]) -> Partition:
    """The partition that jobs go to; raises `UserError` if there is none or it takes no jobs."""
    names = ", ".join(sorted(one.name for one in known)) or "none"
    chosen = [one for one in known if (one.name == machine.partition if machine.partition else one.default)]
    if not chosen and machine.partition:
        raise UserError(f"Slurm has no `{machine.partition}`; name one of its own in `partition` ({names}).")
    if not chosen:
        raise UserError(f"Slurm has no default partition; name one of its own in `partition` ({names}).")
    if not chosen[0].up:
        raise UserError(f"`{chosen[0].name}` takes no jobs; name another in `partition` ({names}) or wait.")
    return chosen[0]


def gpu(machine: Machine, where: Partition) -> str:
    """The GPUs that jobs may ask for; raises `UserError` if no node has that type or that many."""
    wanted = max((needs.gpus for needs in machine.stages.values()), default=0)
    if not wanted:
        return "no stage asks for one"
    kinds = ", ".join(f"{kind or 'unnamed'} x {count}" for kind, count in sorted(where.gpus.items())) or "none"
    there = where.gpus.get(machine.gpu or "", 0) if machine.gpu else max(where.gpus.values(), default=0)
    if not there:
        raise UserError(f"no node of `{where.name}` has a `{machine.gpu}`; name in `gpu` what they have ({kinds}).")
    if there < wanted:
        raise UserError(f"`gpus`: a stage asks for {wanted} on a node, those of `{where.name}` have {kinds}; lower it.")
    return f"{there} x {machine.gpu or 'GPU'} a node in `{where.name}`"
