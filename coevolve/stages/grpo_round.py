"""A round of agent-data mutual evolution: GRPO steps on the tasks of the pool."""

from pathlib import Path

from coevolve.errors import UserError
from coevolve.methods.task_evolution.pool import EMPTY_POOL, round_schedule
from coevolve.methods.task_evolution.records import PoolTask
from coevolve.records.training import TrainReport
from coevolve.run.job import Job
from coevolve.stages.parts.online_training import online_setup
from coevolve.stages.parts.training import training_run
from coevolve.train import grpo


def run(job: Job, out: Path) -> TrainReport:
    """Train the `policy` on the `pool`; write a policy directory with the episodes that it trained on."""
    config, evolution = job.suite.grpo, job.suite.task_evolution
    training, pool = training_run(job, out, start="policy"), job.records("pool", PoolTask)
    if not pool:
        raise UserError(f"{job.file('pool')}: {EMPTY_POOL}")
    schedule = round_schedule(
        pool, job.branch.iteration, evolution.steps, config.batch_size // config.group, evolution.replay, job.seed
    )
    tasks, reference = [each.task for each in pool], job.file("reference").parent if "reference" in job.inputs else None
    with online_setup(job, grpo.episodes_per_rank(config), tasks, config.engine) as setup:
        return grpo.run_grpo(setup, config, training, schedule, reference)
