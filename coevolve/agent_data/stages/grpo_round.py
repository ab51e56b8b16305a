"""A round of agent-data mutual evolution: GRPO steps on the tasks of the pool."""

from __future__ import annotations

from pathlib import Path

from coevolve.agent_data import pool
from coevolve.config.derived.protocol import grpo_engine
from coevolve.pipeline import work
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import SAMPLED, Inputs, PlannedJob, Stage
from coevolve.records.training import TrainReport


def run(job: Job, out: Path) -> TrainReport:
    """Train the `policy` on the `pool`; write a policy directory with the episodes that it trained on."""
    from coevolve.pipeline.stages.parts.online_training import online_setup
    from coevolve.pipeline.stages.parts.training import training_run
    from coevolve.train import grpo

    config, evolution, number = job.suite.grpo, job.suite.task_evolution, job.branch.iteration
    training, of_pool = training_run(job, out, start="policy"), pool.read(job.file("pool"))
    groups = config.batch_size // config.group
    schedule = pool.round_schedule(of_pool, number, evolution.steps, groups, evolution.replay, job.seed)
    tasks = [each.task for each in of_pool]
    reference = job.file("reference").parent if "reference" in job.inputs else None
    with online_setup(job, grpo.episodes_per_rank(config), tasks, config.engine) as setup:
        return grpo.run_grpo(setup, config, training, schedule, reference)


def inputs(playing: Inputs, of_pool: PlannedJob, reference: PlannedJob | None) -> Inputs:
    """The inputs of GRPO, with the pool in place of the tasks; the method's start policy if a KL term refers to it.

    With adapters the KL term refers to the policy that the round starts from.
    """
    kept = {name: files for name, files in playing.items() if name != "tasks"} | {"pool": of_pool["pool.jsonl"]}
    return kept | ({"reference": reference["policy.json"]} if reference else {})


STAGE = Stage(
    help="Train the target with GRPO on the pool's tasks.",
    run=run,
    reads=(*SAMPLED, "grpo", "task_evolution"),
    files=("policy.json", "episodes.jsonl"),
    modules=("domain",),
    plays=grpo_engine,
    cost=work.of_setting(
        lambda suite, of: work.playing_work(of, suite.task_evolution.steps * suite.grpo.batch_size, passes=1)
    ),
    image="train",
    launchable=True,
)
