"""Files that all jobs of an environment share, such as a shop and its search index."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from coevolve.envs.registry import Preparing, domain
from coevolve.workflow.job import Job


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write the files of the environment's package."""
    return cast(Preparing, domain(job.env)).prepare(job.setup, out)
