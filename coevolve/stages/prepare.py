"""What all jobs of an environment share and is worth making once, such as a shop and its search engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from coevolve.envs.registry import Preparing, domain
from coevolve.workflow.job import Job


def run(job: Job, out: Path) -> dict[str, Any]:
    """Let the environment's package fill the folder."""
    return cast(Preparing, domain(job.env)).prepare(job.setup, out)
