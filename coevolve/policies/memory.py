"""How many conversations can keep their keys and values beside a model's weights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from coevolve.policies.kv_cache import cache_bytes

#: Shares of free memory that keys and values may take: a GPU has to hold passes too, a machine other programs.
GPU_SHARE, CPU_SHARE = 0.8, 0.5


def affordable(model: Any, slots: int, context: int) -> int:
    """At most `slots`, as many as fit what is free on the model's device now, and never fewer than one."""
    share = GPU_SHARE if model.device.type == "cuda" else CPU_SHARE
    return fitting(model, slots, context, int(share * free_bytes(model.device)))


def fitting(model: Any, slots: int, context: int, room: int) -> int:
    """At most `slots`, as many as `room` bytes hold with the batch that goes with them, and never fewer than one."""
    fits = (n for n in range(slots, 1, -1) if cache_bytes(model, slots=n, batch=batch_of(n), context=context) <= room)
    return next(fits, 1)


def batch_of(slots: int) -> int:
    """Half of `slots`, rounded up: a rollout completes one half of its episodes while the others' environments step."""
    return (slots + 1) // 2


def free_bytes(device: torch.device) -> int:
    """Memory that can be had: on a GPU also what torch holds and does not use (not run here), else the machine's, or
    what the job's control groups leave of it.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    found = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return min([1024 * int(found[1]) if found else 0, *_left(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def _left(own: Path, root: Path) -> Iterator[int]:
    """Bytes that each control group around the process may still take (cgroup v2)."""
    place = re.search(r"^0::/(.*)$", own.read_text() if own.exists() else "", re.MULTILINE)
    for folder in [root / place[1], *(root / place[1]).parents] if place else []:
        limit, current = folder / "memory.max", folder / "memory.current"
        if limit.exists() and current.exists() and (most := limit.read_text().strip()) != "max":
            yield int(most) - int(current.read_text())
