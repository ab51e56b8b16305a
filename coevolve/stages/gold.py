"""Gold trajectories asked of the simulator; the committed file under `data/` is this stage's result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve.envs.sciworld import gold
from coevolve.stages.job import Job


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `gold.jsonl`; returns how many gold paths were kept and why others were not."""
    raise NotImplementedError(gold, job, out)
