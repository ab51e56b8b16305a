"""The tasks of a pool and their experts, which preference pairs are built on: the reference solutions, played."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.agent_data.records import read_pool
from coevolve.errors import UserError
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import ENVIRONMENT, Inputs, PlannedJob, Stage
from coevolve.records.episodes import Task, Trajectory
from coevolve.storage import jsonl

if TYPE_CHECKING:
    from coevolve.envs.base import Env, Setup


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `explore.jsonl`, `experts.jsonl` and `drops.jsonl`; a solution that earns less than 1 is a drop."""
    from coevolve.envs.experts import match_experts
    from coevolve.envs.workers import environments
    from coevolve.pipeline.stages.parts.environment import env_setup

    tasks, setup = [each.task for each in read_pool(job.file("pool"))], env_setup(job)
    with environments(setup, 1) as (env,):
        experts = match_experts(_played(job, env, setup, tasks), tasks, 1.0)
    jsonl.write(out / "explore.jsonl", tasks)
    jsonl.write(out / "experts.jsonl", experts.trajectories)
    jsonl.write(out / "drops.jsonl", experts.drops)
    return {"tasks": len(tasks), "experts": len(experts.trajectories)}


def _played(job: Job, env: Env, setup: Setup, tasks: Sequence[Task]) -> Iterator[Trajectory]:
    """The episodes of the reference solutions, with the prompts of the agents' episodes."""
    from coevolve.envs.base import EnvError
    from coevolve.envs.synthesis import execute_solution, synthesis
    from coevolve.pipeline.stages.parts.prompting import prompt_builder

    texts, prompt = synthesis(job.env).solution_texts, prompt_builder(job)
    for task in tasks:
        try:
            expert = execute_solution(env, task, texts(setup, task), setup, job.suite.rollout.retries)
        except EnvError as error:
            raise UserError(f"task {task.task_id}: the environment failed ({error}); run again.") from None
        yield expert.model_copy(update={"prompt": prompt(expert.prompt[-1].content)})


def inputs(pool: PlannedJob, prompts: Inputs, *, trained: bool) -> Inputs:
    """The pool whose reference solutions are played, and how agents are prompted."""
    return {"pool": pool["pool.jsonl"]} | {name: prompts[name] for name in prompts if trained or name != "example"}


STAGE = Stage(
    help="Play the reference solutions of a pool, as experts for preference pairs on its tasks.",
    run=run,
    reads=(*ENVIRONMENT, "rollout"),
    files=("explore.jsonl", "experts.jsonl", "drops.jsonl"),
    modules=("domain", "synthesis"),
)
