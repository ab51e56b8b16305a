"""How many slots of a KV cache fit into memory next to a model's weights."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from coevolve.errors import UserError
from coevolve.policies.kv_cache import cache_bytes

#: Shares of free memory that KV caches may use: a GPU also needs room for activations, a CPU for other programs.
GPU_SHARE, CPU_SHARE = 0.8, 0.5


def affordable_slots(model: Any, slots: int, context: int, budget: int | None = None) -> int:
    """The largest number of slots up to `slots` whose caches take at most `budget` bytes; at least 1.

    None: a share of the free memory of the model's device; raises `UserError` if one cache exceeds all of it.
    """
    if budget is None:
        share, free = GPU_SHARE if model.device.type == "cuda" else CPU_SHARE, free_bytes(model.device)
        budget = int(share * free)
        if (needed := cache_bytes(model, slots=1, context=context)) > free:
            problem = f"the KV cache of a conversation of {context} tokens takes {needed / 1e9:.3g} GB"
            fix = f"set the model's `context` (evaluate-model: `--context`) to at most {context * budget // needed}"
            raise UserError(f"{problem}, and {free / 1e9:.3g} GB are free; {fix}.")
    padding = cache_bytes(model, slots=0, context=context)  # as much as a slot
    return max(1, min(slots, budget // padding - 1))


def free_bytes(device: torch.device) -> int:
    """Free memory in bytes: a GPU's with what torch does not use (not run here), else what control groups leave."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    available = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    limits = _cgroup_free_bytes(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return min([1024 * int(available[1]) if available else 0, *limits])


def _cgroup_free_bytes(cgroup_file: Path, root: Path) -> Iterator[int]:
    """Bytes left to the process by its control group and each parent group that has a limit (cgroup v2)."""
    group = re.search(r"^0::/(.*)$", cgroup_file.read_text() if cgroup_file.exists() else "", re.MULTILINE)
    for folder in [root / group[1], *(root / group[1]).parents] if group else []:
        limit, current = folder / "memory.max", folder / "memory.current"
        if limit.exists() and current.exists() and (maximum := limit.read_text().strip()) != "max":
            yield int(maximum) - int(current.read_text()) + _file_cache(folder / "memory.stat")


def _file_cache(stat: Path) -> int:
    """Bytes of files that a control group keeps in memory and gives up where memory is needed."""
    text = stat.read_text() if stat.exists() else ""
    return sum(int(size) for size in re.findall(r"^(?:in)?active_file (\d+)$", text, re.MULTILINE))
