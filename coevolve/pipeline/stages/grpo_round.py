"""A round of agent-data mutual evolution: GRPO steps on the tasks of the pool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from coevolve.errors import UserError
from coevolve.pipeline import work
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import SAMPLED, Stage
from coevolve.records.training import TrainReport

if TYPE_CHECKING:
    from coevolve.pipeline.stage import Inputs, PlannedJob


def run(job: Job, out: Path) -> TrainReport:
    """Train the `policy` on the `pool`; write a policy directory with the episodes that it trained on."""
    from coevolve.methods.task_evolution.pool import EMPTY_POOL, round_schedule
    from coevolve.methods.task_evolution.records import PoolTask
    from coevolve.pipeline.stages.parts.online_training import online_setup
    from coevolve.pipeline.stages.parts.training import training_run
    from coevolve.train import grpo

    config, evolution = job.suite.grpo, job.suite.task_evolution
    training, pool = training_run(job, out, start="policy"), job.records("pool", PoolTask)
    if not pool:
        raise UserError(f"{job.file('pool')}: {EMPTY_POOL}")
    schedule = round_schedule(
        pool, job.branch.iteration, evolution.steps, config.batch_size // config.group, evolution.replay, job.seed
    )
    tasks, reference = [each.task for each in pool], job.file("reference").parent if "reference" in job.inputs else None
    with online_setup(job, grpo.episodes_per_rank(config), tasks) as setup:
        return grpo.run_grpo(setup, config, training, schedule, reference)


def inputs(playing: Inputs, pool: PlannedJob, reference: PlannedJob | None) -> Inputs:
    """The inputs of GRPO, with the pool in place of the tasks; the method's start policy if a KL term refers to it.

    With adapters the KL term refers to the policy that the round starts from.
    """
    of_pool = {name: files for name, files in playing.items() if name != "tasks"} | {"pool": pool["pool.jsonl"]}
    return of_pool | ({"reference": reference["policy.json"]} if reference else {})


STAGE = Stage(
    help="Train the target with GRPO on the pool's tasks.",
    run=run,
    reads=(*SAMPLED, "grpo", "task_evolution"),
    files=("policy.json", "episodes.jsonl"),
    modules=("domain",),
    cost=work.of_setting(
        lambda suite, of: work.playing_work(of, suite.task_evolution.steps * suite.grpo.batch_size, passes=1)
    ),
    image="train",
    launchable=True,
)
