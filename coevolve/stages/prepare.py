"""Files that all jobs of an environment share, such as a shop and its search index."""

from pathlib import Path
from typing import Any, cast

from coevolve.envs.registry import Preparing, domain
from coevolve.run.job import Job
from coevolve.stages.parts.environment import env_setup


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write the files of the environment's package."""
    return cast(Preparing, domain(job.env)).prepare(env_setup(job), out)
