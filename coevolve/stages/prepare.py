"""What all jobs of an environment share and is worth making once, such as a shop and its search engine."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, cast

from coevolve.envs.domains import Preparing
from coevolve.stages.job import Job


def run(job: Job, out: Path) -> dict[str, Any]:
    """Let the environment's package fill the folder."""
    return cast(Preparing, importlib.import_module(job.env.module)).prepare(job.setup, out)
