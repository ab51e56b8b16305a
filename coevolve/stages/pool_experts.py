"""The tasks of a pool and their experts, which preference pairs are built on: the reference solutions, played."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from coevolve.envs.base import Env, EnvError
from coevolve.envs.experts import match_experts
from coevolve.envs.synthesis import execute_solution, synthesis
from coevolve.envs.workers import environments
from coevolve.errors import UserError
from coevolve.methods.task_evolution.pool import EMPTY_POOL
from coevolve.methods.task_evolution.records import PoolTask
from coevolve.records.episodes import Task, Trajectory
from coevolve.run.job import Job
from coevolve.stages.parts.environment import env_setup
from coevolve.stages.parts.prompting import prompt_builder
from coevolve.storage import jsonl


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `explore.jsonl`, `experts.jsonl` and `drops.jsonl`; a solution that earns less than 1 is a drop.

    Raises `UserError` for a pool without tasks.
    """
    tasks = [each.task for each in job.records("pool", PoolTask)]
    if not tasks:
        raise UserError(f"{job.file('pool')}: {EMPTY_POOL}")
    with environments(env_setup(job), 1) as (env,):
        experts = match_experts(_played(job, env, tasks), tasks, 1.0)
    jsonl.write(out / "explore.jsonl", tasks)
    jsonl.write(out / "experts.jsonl", experts.trajectories)
    jsonl.write(out / "drops.jsonl", experts.drops)
    return {"tasks": len(tasks), "experts": len(experts.trajectories)}


def _played(job: Job, env: Env, tasks: Sequence[Task]) -> Iterator[Trajectory]:
    """The episodes of the reference solutions, with the prompts of the agents' episodes."""
    texts, prompt = synthesis(job.env).solution_texts, prompt_builder(job)
    for task in tasks:
        try:
            expert = execute_solution(env, task, texts(env_setup(job), task), env_setup(job), job.suite.rollout.retries)
        except EnvError as error:
            raise UserError(f"task {task.task_id}: the environment failed ({error}); run again.") from None
        yield expert.model_copy(update={"prompt": prompt(expert.prompt[-1].content)})
