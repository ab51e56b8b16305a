"""Gold trajectories asked of the simulator; the committed file under `data/` is this stage's result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve.envs.sciworld import gold
from coevolve.envs.sciworld.config import SciWorldConfig
from coevolve.envs.sciworld.tasks import select
from coevolve.errors import UserError
from coevolve.storage import files, jsonl
from coevolve.types import Trajectory
from coevolve.workflow.job import Job


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `gold.jsonl` for the suite's training tasks; raises `UserError` if it is not what `experts.sha256` says."""
    env, name = job.env, job.wildcards["env"]
    if not isinstance(env, SciWorldConfig):
        raise UserError(f"envs.{name}: only ScienceWorld has gold trajectories to make; give a suite with it alone.")
    selection = select(env.tasks, env.splits, job.suite.quirks.overlap)
    journal = jsonl.Journal(job.work / "gold.jsonl", Trajectory)
    trajectories, drops = gold.generate(
        selection.training,
        journal,
        simplification=env.simplification,
        memory_mb=env.memory_mb,
        read_timeout=env.read_timeout,
    )
    jsonl.write(out / "gold.jsonl", trajectories)
    found = files.sha256(out / "gold.jsonl")
    if env.experts.format == "gold" and found != env.experts.sha256:
        raise UserError(f"the gold trajectories have sha256 {found}, not `envs.{name}.experts.sha256`.")
    return {"trajectories": len(trajectories), "drops": len(drops), "sha256": found}
