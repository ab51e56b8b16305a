"""Makes expert trajectories with an environment's own solver; `data/` holds the committed result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.errors import UserError
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import ENVIRONMENT, Stage

if TYPE_CHECKING:
    from coevolve.envs.registry import Gold


def run(job: Job, out: Path) -> dict[str, Any]:
    """Writes `gold.jsonl`; raises `UserError` for an environment that has no solver."""
    from coevolve.envs.registry import optional
    from coevolve.pipeline.stages.parts.environment import env_setup

    gold: Gold | None = optional(job.env.kind, "gold")
    if gold is None:
        raise UserError(
            f"{env_setup(job).key}: `{job.env.kind}` makes no gold trajectories; give a suite with ScienceWorld alone."
        )
    return gold.generate(env_setup(job), job.work, out)


STAGE = Stage(
    help="Generate ScienceWorld's expert trajectories, which are committed; only `make gold` runs this.",
    run=run,
    reads=ENVIRONMENT,
    files=("gold.jsonl",),
    modules=("domain", "gold"),
)
