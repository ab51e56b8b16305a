"""GRPO from a base policy, which trains on its own episodes of the training tasks."""

from __future__ import annotations

from pathlib import Path

from coevolve.train import grpo
from coevolve.types import TrainReport
from coevolve.workflow.job import Job
from coevolve.workflow.online_training import online_setup
from coevolve.workflow.training import training_run


def run(job: Job, out: Path) -> TrainReport:
    """Train the `policy` on the `tasks`; write a policy directory with the episodes that it trained on."""
    config, training = job.suite.grpo, training_run(job, out, start="policy")
    with online_setup(job, config.batch_size) as setup:
        return grpo.run_grpo(setup, config, training)
