"""How many conversations can keep their keys and values beside a model's weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from coevolve.policies.engine import cache_bytes

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
    """Memory that can be had: on a GPU also what torch holds and does not use (not run here), else the machine's."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    found = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return 1024 * int(found[1]) if found else 0
