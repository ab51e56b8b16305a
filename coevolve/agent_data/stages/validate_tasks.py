"""Validation of a round's candidates: reference solutions are executed twice, and what succeeds joins the pool."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.agent_data import pool
from coevolve.agent_data.records import FragmentDropReason, PoolTask, Validation, task_counts
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import ENVIRONMENT, Inputs, PlannedJob, Stage
from coevolve.records.episodes import Task
from coevolve.storage import files, jsonl

if TYPE_CHECKING:
    from coevolve.envs.base import Env, Setup
    from coevolve.envs.synthesis import TaskSynthesis

log = logging.getLogger(__name__)


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `pool.jsonl` (the old pool and the new tasks), `drops.jsonl` and `counts.json`; no candidate is lost."""
    from coevolve.envs.synthesis import synthesis
    from coevolve.envs.workers import environments
    from coevolve.pipeline.stages.parts.environment import env_setup

    config, number, setup = job.suite.task_evolution, job.branch.iteration, env_setup(job)
    tasks = synthesis(job.env)

    def key(task: Task, solution: Sequence[str]) -> pool.SolutionKey:
        return tuple(tasks.normalised(setup, task, action) for action in solution)

    known = ((task, tasks.reference_solution(task)) for task in job.records("evaluated", Task))
    with environments(setup, 1) as (env,):
        update = pool.extend(
            config,
            job.records("pool", PoolTask) if "pool" in job.inputs else [],
            job.records("candidates", PoolTask),
            config.initial_tasks if number == 1 else config.new_tasks,
            lambda each: key(each.task, each.solution),
            functools.partial(_validate, env, tasks, setup, job.suite.rollout.retries) if config.validation else None,
            {key(task, solution) for task, solution in known if solution},
        )
    jsonl.write(out / "pool.jsonl", update.tasks)
    jsonl.write(out / "drops.jsonl", update.drops)
    counts = task_counts(number, update.added, update.drops, len(update.tasks)).model_dump(mode="json")
    files.write_json(out / "counts.json", counts)
    log.info("%d tasks, %d of them new", len(update.tasks), len(update.added))
    return counts


def _validate(
    env: Env, tasks: TaskSynthesis, setup: Setup, retries: int, candidate: PoolTask
) -> Validation | FragmentDropReason:
    """The validation of a candidate's reference solution, or why it fails."""
    from coevolve.envs.base import EnvError
    from coevolve.envs.synthesis import execute_solution

    texts = tasks.solution_texts(setup, candidate.task)
    try:
        runs = [execute_solution(env, candidate.task, texts, setup, retries) for _ in range(2)]
    except EnvError as error:
        log.warning("%s: %s", candidate.task.task_id, error)
        return FragmentDropReason.ENV_ERROR
    return pool.judge(runs, len(candidate.solution), functools.partial(tasks.executed, setup))


def inputs(explored: PlannedJob, evaluated: PlannedJob, before: PlannedJob | None, env_files: Inputs) -> Inputs:
    """The candidates of a round, the pool that they join, the tasks that none may equal, and what an episode reads."""
    old = {"pool": before["pool.jsonl"]} if before else {}
    return {"candidates": explored["candidates.jsonl"], "evaluated": evaluated["evaluate.jsonl"], **old, **env_files}


STAGE = Stage(
    help="Execute the reference solutions of candidate tasks twice, and add those that succeed to the pool.",
    run=run,
    reads=(*ENVIRONMENT, "task_evolution", "rollout"),
    files=("pool.jsonl", "drops.jsonl", "counts.json"),
    modules=("domain", "synthesis"),
)
