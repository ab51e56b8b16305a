"""A round of agent-data mutual evolution: GRPO steps on the tasks of the pool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from coevolve import seeds
from coevolve.agent_data.records import PoolTask, read_pool
from coevolve.config.derived.protocol import grpo_engine
from coevolve.pipeline import work
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import SAMPLED, Inputs, PlannedJob, Stage
from coevolve.records.episodes import Task
from coevolve.records.training import TrainReport


def run(job: Job, out: Path) -> TrainReport:
    """Train the `policy` on the `pool`; write a policy directory with the episodes that it trained on."""
    from coevolve.pipeline.stages.parts.online_training import online_setup
    from coevolve.pipeline.stages.parts.training import training_run
    from coevolve.train import grpo

    config, evolution, number = job.suite.grpo, job.suite.task_evolution, job.branch.iteration
    training, pool = training_run(job, out, start="policy"), read_pool(job.file("pool"))
    groups = config.batch_size // config.group
    schedule = round_schedule(pool, number, evolution.steps, groups, evolution.replay, job.seed)
    tasks = [each.task for each in pool]
    reference = job.file("reference").parent if "reference" in job.inputs else None
    with online_setup(job, grpo.episodes_per_rank(config), tasks, config.engine) as setup:
        return grpo.run_grpo(setup, config, training, schedule, reference)


def round_schedule(
    pool: Sequence[PoolTask], number: int, steps: int, per_step: int, replay: float | None, seed: int
) -> list[list[Task]]:
    """The tasks of each step of round `number`, `per_step` a step.

    Tasks are visited permutation after permutation. With `replay`, that share of the visits goes to tasks of earlier
    rounds and the rest to this round's new tasks, as long as there are tasks of both.
    """
    visits = steps * per_step
    new = [entry.task for entry in pool if entry.round == number]
    old = [entry.task for entry in pool if entry.round != number]
    if replay is None or not new or not old:
        stream = _stream([*old, *new], visits, seed, "pool")
    else:
        repeated = math.floor(replay * visits + 0.5)
        mixed = [*_stream(old, repeated, seed, "old"), *_stream(new, visits - repeated, seed, "new")]
        stream = [mixed[index] for index in seeds.generator(seed, "mix").permutation(visits)]
    return [stream[step * per_step : (step + 1) * per_step] for step in range(steps)]


def _stream(tasks: Sequence[Task], visits: int, seed: int, name: str) -> list[Task]:
    """The first `visits` tasks of permutation after permutation."""
    stream: list[Task] = []
    while len(stream) < visits:
        order = seeds.generator(seed, "visits", name, len(stream)).permutation(len(tasks))
        stream += [tasks[index] for index in order]
    return stream[:visits]


def inputs(playing: Inputs, pool: PlannedJob, reference: PlannedJob | None) -> Inputs:
    """The inputs of GRPO, with the pool in place of the tasks; the method's start policy if a KL term refers to it.

    With adapters the KL term refers to the policy that the round starts from.
    """
    kept = {name: files for name, files in playing.items() if name != "tasks"} | {"pool": pool["pool.jsonl"]}
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
