"""The site: a machine file that git ignores, made of what Slurm reports and of what its user gives.

It extends a machine file of the repository, whose requests it reduces to what the nodes have.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from coevolve.config.loading import SITE, machine_file, read_machine
from coevolve.config.machine import JobResources, Machine
from coevolve.errors import UserError
from coevolve.settings.yaml_files import read_yaml
from coevolve.storage import files
from coevolve.watch.slurm import Nodes, Partition

HEADER = """\
# This cluster, as `make cluster` found it: `snakemake --profile slurm` reads it, git ignores it. To change a key, give
# its variable, such as `make cluster PARTITION=gpu`; keys that you add stay, under `stages` while the nodes do. To find
# everything again, delete this file and run `make cluster`.
"""
#: Keys that a user gives, by a variable of `make cluster` in capitals.
GIVEN = ("partition", "cpu_partition", "account", "qos", "gpu", "extra")
#: Minutes of the longest job where neither the partition nor the extended machine has a limit.
WEEK = 7 * 24 * 60
#: GB of a node where neither Slurm nor the extended machine has a number.
UNCOUNTED_GB = 1e6
#: A GPU type that the executor of Snakemake takes.
KIND = re.compile(r"[\w.]+")


def given_before() -> dict[str, Any]:
    """The keys of the site that `make cluster` keeps, and `machine`, the file that it extends; empty without a site."""
    names = {"extends": "machine", **{key: key for key in GIVEN}}
    return {names[key]: value for key, value in _read().items() if key in names and value}


def describe(known: Sequence[Partition], given: Mapping[str, Any], *, containers: bool) -> dict[str, Any]:
    """The keys of the site; raises `UserError` if no partition has what the machine requests.

    `given`: keys of `GIVEN`, and `machine`, the machine to extend (default: h100).
    """
    file = machine_file(given.get("machine", "h100"))
    base = read_machine(file)
    needs_gpus = any(job.gpus for job in base.stages.values())
    chosen = _partition(known, given, needs_gpus)
    kind, nodes = _nodes(chosen, given.get("gpu") or base.gpu)
    number = nodes.gpus.get(kind, 0)
    most = _most(base, nodes, chosen)
    reduced = {name: _reduced(job, number, nodes, most) for name, job in base.stages.items()}
    return {
        "extends": os.path.relpath(file),
        "label": f"nodes of {number} {kind or 'GPU'}" if number else f"nodes of partition {chosen.name}",
        "gpu": kind if number and KIND.fullmatch(kind) else None,
        "gpus_per_node": number,
        "most": most,
        "partition": chosen.name,
        "cpu_partition": given.get("cpu_partition"),
        "account": given.get("account"),
        "qos": given.get("qos"),
        "extra": given.get("extra", ""),
        "containers": containers,
        "stages": {name: keys for name, keys in reduced.items() if keys},
    }


def write(settings: Mapping[str, Any]) -> bool:
    """Write the site unless it has these keys already; returns whether it was written.

    Keys that a person added are kept, those of `stages` while the nodes are the same, and `costs` (what `make gpu`
    prints) while the site extends the same machine and has the same GPUs.
    """
    before = _read()
    same = all(before.get(key) == settings[key] for key in ("extends", "gpu"))
    added = {key: value for key, value in before.items() if key not in settings and (same or key != "costs")}
    wanted = {**settings, **added}
    if all(before.get(key) == settings[key] for key in ("extends", "partition", "gpu", "gpus_per_node")):
        reduced, kept = settings["stages"], before.get("stages", {})
        wanted["stages"] = {stage: {**reduced.get(stage, {}), **kept.get(stage, {})} for stage in {**kept, **reduced}}
    if before == wanted:
        return False
    text = yaml.safe_dump(wanted, sort_keys=False, default_flow_style=None, width=120)
    files.write_bytes(SITE, (HEADER + text).encode())
    return True


def _read() -> dict[str, Any]:
    """The keys of the site's own file; empty without one. Raises `UserError` if it is not readable."""
    if not SITE.exists():
        return {}
    read_yaml(SITE)
    raw: dict[str, Any] = yaml.safe_load(SITE.read_text(encoding="utf-8"))
    return raw


def _partition(known: Sequence[Partition], given: Mapping[str, Any], needs_gpus: bool) -> Partition:
    """The given partition, else the default one, else that with the most GPUs.

    Several given ones, of which Slurm chooses, are one with the nodes of all.
    """
    listed = ", ".join(sorted(each.name for each in known)) or "none"
    by_name = {each.name: each for each in known}
    if names := given.get("partition", ""):
        if missing := [name for name in names.split(",") if name not in by_name]:
            raise UserError(f"PARTITION={missing[0]}: Slurm has none of this name; give another of: {listed}.")
        chosen = [by_name[name] for name in names.split(",")]
        minutes = min((each.minutes for each in chosen if each.minutes), default=None)
        return replace(chosen[0], name=names, minutes=minutes, nodes=sum((each.nodes for each in chosen), ()))
    usable = [each for each in known if each.up and (any(each.gpus.values()) or not needs_gpus)]
    if not usable:
        problem = f"no partition of {listed} is up and has GPUs"
        raise UserError(f"{problem}; give PARTITION=NAME, or MACHINE=cpu for a suite that needs no GPU.")

    def gpus(each: Partition) -> int:
        return sum(max(nodes.gpus.values(), default=0) * nodes.count for nodes in each.nodes)

    return max(usable, key=lambda each: (each.default, gpus(each)))


def _nodes(chosen: Partition, wanted: str | None) -> tuple[str, Nodes]:
    """The GPU type of a partition's jobs, and the smallest nodes that have it.

    It is the wanted type if the partition has it, else the most frequent one; "" without a name or without GPUs.
    """
    numbers = {kind: sum(n.gpus.get(kind, 0) * n.count for n in chosen.nodes) for kind in chosen.gpus}
    if wanted in numbers:
        kind = str(wanted)
    elif numbers:
        kind = max(numbers, key=lambda each: numbers[each])
    else:
        kind = ""
    having = [nodes for nodes in chosen.nodes if kind in nodes.gpus] or chosen.nodes
    gpus = min(nodes.gpus.get(kind, 0) for nodes in having)
    cpus, memory = min(nodes.cpus for nodes in having), min(nodes.memory_gb for nodes in having)
    return kind, Nodes({kind: gpus} if gpus else {}, cpus, memory, sum(nodes.count for nodes in having))


def _most(base: Machine, nodes: Nodes, chosen: Partition) -> dict[str, float]:
    """The limits of a job. A cluster that does not count memory lists 1 MB a node."""
    memory, minutes = (base.most.memory_gb, base.most.minutes) if base.most else (UNCOUNTED_GB, WEEK)
    return {"memory_gb": nodes.memory_gb or memory, "minutes": chosen.minutes or minutes}


def _reduced(job: JobResources, gpus: int, nodes: Nodes, most: Mapping[str, float]) -> dict[str, Any]:
    """The requests of a stage that exceed a node, reduced to it; the processes of a training are one a GPU."""
    limits = {"gpus": gpus, "cpus": nodes.cpus, "memory_gb": most["memory_gb"], "minutes": most["minutes"]}
    reduced = {key: limit for key, limit in limits.items() if getattr(job, key) > limit}
    if "gpus" in reduced:
        reduced |= {"processes": max(1, min(job.processes, gpus)), "nodes": 1}
    return reduced
