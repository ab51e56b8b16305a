"""A round of agent-data mutual evolution: GRPO steps on the tasks of the pool."""

from __future__ import annotations

from pathlib import Path

from coevolve.errors import UserError
from coevolve.methods.task_evolution.pool import EMPTY_POOL, round_schedule
from coevolve.methods.task_evolution.records import PoolTask
from coevolve.train import grpo
from coevolve.types import TrainReport
from coevolve.workflow.job import Job
from coevolve.workflow.online_training import online_setup
from coevolve.workflow.training import training_run


def run(job: Job, out: Path) -> TrainReport:
    """Train the `policy` on the `pool`; write a policy directory with the episodes that it trained on."""
    config, evolution = job.suite.grpo, job.suite.task_evolution
    training, pool = training_run(job, out, start="policy"), job.records("pool", PoolTask)
    if not pool:
        raise UserError(f"{job.file('pool')}: {EMPTY_POOL}")
    schedule = round_schedule(
        pool, job.branch.iteration, evolution.steps, config.batch_size // config.group, evolution.replay, job.seed
    )
    tasks, reference = [each.task for each in pool], job.policy("reference") if "reference" in job.inputs else None
    with online_setup(job, config.batch_size, tasks) as setup:
        return grpo.run_grpo(setup, config, training, schedule, reference)
