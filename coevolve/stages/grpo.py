"""GRPO from a base policy: it plays the training tasks and learns from its own episodes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from coevolve.train import grpo
from coevolve.workflow.job import Job
from coevolve.workflow.online import learn


def run(job: Job, out: Path) -> dict[str, Any]:
    """Train the `policy` on the `tasks`; write a policy directory, and the episodes it learned from beside it."""
    config = job.suite.grpo
    return learn(job, out, partial(grpo.run_grpo, config=config), config.batch_size)
