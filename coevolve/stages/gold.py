"""Makes expert trajectories with an environment's own solver; `data/` holds the committed result."""

from pathlib import Path
from typing import Any

from coevolve.envs.registry import Gold, optional
from coevolve.errors import UserError
from coevolve.run.job import Job
from coevolve.stages.parts.environment import env_setup


def run(job: Job, out: Path) -> dict[str, Any]:
    """Writes `gold.jsonl`; raises `UserError` for an environment that has no solver."""
    gold: Gold | None = optional(job.env.kind, "gold")
    if gold is None:
        raise UserError(
            f"{env_setup(job).key}: `{job.env.kind}` makes no gold trajectories; give a suite with ScienceWorld alone."
        )
    return gold.generate(env_setup(job), job.work, out)
