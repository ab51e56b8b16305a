"""Slurm's partitions, the nodes in them and a user's accounts, as Slurm's commands report them."""

import getpass
import grp
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coevolve.config.machine import Machine
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
    """All partitions that sinfo lists; raises `UserError` if it fails."""
    return parse(_answer(*SINFO))


def _answer(*command: str) -> str:
    """What a command prints; raises `UserError` if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{command[0]} failed ({error}); ask the cluster's administrators.") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise UserError(f"{command[0]} failed ({reason}); ask the cluster's administrators.")
    return done.stdout


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


def accounts() -> list[str]:
    """The user's accounts, the default one first; none without an accounting database."""
    user, show = getpass.getuser(), ("sacctmgr", "--noheader", "--parsable2", "show")
    try:
        default = _answer(*show, "user", user, "format=DefaultAccount")
        return list(dict.fromkeys((default + _answer(*show, "associations", f"user={user}", "format=Account")).split()))
    except UserError:
        return []


def refusals(accounts: Sequence[str]) -> dict[str, str]:
    """Why partitions take no jobs of this user, by their names, as `scontrol show partition` says."""
    groups = [name for number in os.getgroups() if (name := _group(number))]
    shown = (_fields(line) for line in _answer("scontrol", "show", "partition", "--oneliner").splitlines())
    sentences = ((each.get("PartitionName", ""), _refusal(each, groups, accounts)) for each in shown)
    return {name: sentence for name, sentence in sentences if sentence}


def _fields(line: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return ""


def _refusal(partition: Mapping[str, str], groups: Sequence[str], accounts: Sequence[str]) -> str:
    """Why a partition takes no jobs of a user with these groups and accounts; empty if it does."""
    if partition.get("RootOnly") == "YES":
        return "it is root's alone"
    for key, names in (("AllowGroups", groups), ("AllowAccounts", accounts)):
        allowed = partition.get(key, "ALL")
        if names and allowed != "ALL" and not {*allowed.split(",")} & {*names}:
            return f"{key}={allowed}"
    denied = {*partition.get("DenyAccounts", "").split(",")}
    return f"DenyAccounts={partition['DenyAccounts']}" if accounts and denied.issuperset(accounts) else ""


def partition(machine: Machine, known: Sequence[Partition]) -> Partition:
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
