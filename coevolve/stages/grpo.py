"""GRPO from a base policy, which trains on its own episodes of the training tasks."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from coevolve.train import grpo
from coevolve.types import TrainReport
from coevolve.workflow.job import Job
from coevolve.workflow.online import learn


def run(job: Job, out: Path) -> TrainReport:
    """Train the `policy` on the `tasks`; write a policy directory with the episodes that it trained on."""
    config = job.suite.grpo
    return learn(job, out, partial(grpo.run_grpo, config=config), config.batch_size)
