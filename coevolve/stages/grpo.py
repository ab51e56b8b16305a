"""GRPO from a base policy, which trains on its own episodes of the training tasks."""

from pathlib import Path

from coevolve.records.training import TrainReport
from coevolve.run.job import Job
from coevolve.stages.parts.online_training import online_setup
from coevolve.stages.parts.training import training_run
from coevolve.train import grpo


def run(job: Job, out: Path) -> TrainReport:
    """Train the `policy` on the `tasks`; write a policy directory with the episodes that it trained on."""
    config, training = job.suite.grpo, training_run(job, out, start="policy")
    with online_setup(job, grpo.episodes_per_rank(config), engine=config.engine) as setup:
        return grpo.run_grpo(setup, config, training)
