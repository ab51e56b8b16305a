"""Files that all jobs of an environment share, such as a shop and its search index."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import ENVIRONMENT, Stage


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write the files of the environment's package."""
    from coevolve.envs.registry import Preparing, domain
    from coevolve.pipeline.stages.parts.environment import env_setup

    return cast(Preparing, domain(job.env)).prepare(env_setup(job), out)


STAGE = Stage(
    help="Build the files that all jobs of an environment share, such as a shop and its search index.",
    run=run,
    reads=ENVIRONMENT,
    files=("meta.json",),
    modules=("domain",),
)
