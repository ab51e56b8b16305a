"""Playing tasks with a policy: what exploration and evaluation share."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from coevolve import seeds
from coevolve.envs.workers import environments
from coevolve.errors import UserError
from coevolve.policies.base import Policy
from coevolve.policies.hf import TransformersPolicy
from coevolve.policies.vllm import VllmPolicy
from coevolve.rollout import rollout
from coevolve.storage import jsonl
from coevolve.types import Sampling, Task, Trajectory, Turn
from coevolve.workflow import endpoint
from coevolve.workflow.job import Job
from coevolve.workflow.task_prompts import asking

#: The episodes of a job that plays once; others have a name of their own.
EPISODES = "episodes"


def play(
    job: Job,
    tasks: Sequence[Task],
    *,
    temperature: float,
    samples: int,
    policy: str = "policy",
    prefixes: Sequence[Sequence[Turn]] | None = None,
    name: str = EPISODES,
) -> list[Trajectory]:
    """Episodes of every task in task order; those that a killed run finished are read back, not played again.

    `policy` is the input that plays. Episodes of another `name` have a journal and random draws of their own.
    """
    torch.set_num_threads(job.threads)
    config = job.suite.rollout
    sampling = Sampling(temperature=temperature, top_p=config.top_p, max_new_tokens=config.max_new_tokens)
    workers = min(job.env.workers, len(tasks) * samples)
    player = _player(job, policy, workers)
    if isinstance(player, TransformersPolicy):
        # An episode without a slot would be read from its beginning in every turn.
        workers = min(workers, player.slots)
    journal = jsonl.Journal(job.work / f"{name}.jsonl", Trajectory)
    with environments(job.setup, workers) as envs:
        return rollout(
            tasks,
            player,
            envs,
            samples=samples,
            sampling=sampling,
            seed=job.seed if name == EPISODES else seeds.derive(job.seed, name),
            agent=job.agent,
            protocol=job.suite.protocol,
            retries=config.retries,
            journal=journal,
            prompt=asking(job),
            prefixes=prefixes,
        )


def _precision() -> torch.dtype | str:
    """Policies are kept in float32; a GPU plays them in bfloat16, at half the memory (not run here)."""
    return torch.bfloat16 if torch.cuda.is_available() else "auto"


def _player(job: Job, name: str, workers: int) -> Policy:
    """The input policy called `name`, for `workers` episodes at once."""
    model = job.model
    if model.endpoint:
        return endpoint.asked(job, model.endpoint, name)
    sampler = job.suite.sampler
    path, long_prompt = job.policy(name), job.suite.quirks.long_prompt
    if sampler.engine == "vllm":
        return VllmPolicy.load(
            path,
            context=model.context,
            long_prompt=long_prompt,
            gpu_memory_utilization=sampler.gpu_memory_utilization,
            max_num_seqs=sampler.max_num_seqs,
            tensor_parallel_size=sampler.tensor_parallel_size,
        )
    return TransformersPolicy.load(
        path, slots=workers, context=model.context, long_prompt=long_prompt, dtype=_precision()
    )


def exploration(job: Job, tasks: Sequence[Task]) -> list[Trajectory]:
    """Every task k times, at the job's temperature."""
    return play(job, tasks, temperature=job.temperature, samples=job.suite.rollout.k)


def evaluation(job: Job, tasks: Sequence[Task]) -> list[Trajectory]:
    """Every task, as often and at the temperature that the suite or the method says."""
    rules = job.suite.evaluation
    return play(job, tasks, temperature=rules.temperature, samples=rules.samples)


def gathered(job: Job, tasks: Sequence[Task]) -> list[Trajectory]:
    """The episodes of all parts in the order in which one job would have brought them."""
    found: dict[str, list[Trajectory]] = {}
    for episode in (episode for path in job.inputs["parts"] for episode in jsonl.read(path, Trajectory)):
        found.setdefault(episode.task.task_id, []).append(episode)
    if found.keys() != {task.task_id for task in tasks}:
        raise UserError(f"{job.inputs['parts'][0]}: these parts are of other tasks; delete `parts` and run again.")
    share = {task_id: len(found[task_id]) // count for task_id, count in Counter(t.task_id for t in tasks).items()}
    left = {task_id: iter(episodes) for task_id, episodes in found.items()}
    return [episode for task in tasks for episode in itertools.islice(left[task.task_id], share[task.task_id])]


def counts(job: Job, episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """How the episodes ended, and what was cut or failed on the way; tokens count where they were sampled."""
    tokens = sum(len(turn.token_ids) for episode in episodes for turn in episode.turns)
    return {
        "episodes": len(episodes),
        "environments": sorted({episode.environment for episode in episodes}),
        "mean_reward": sum(episode.reward for episode in episodes) / max(1, len(episodes)),
        "failures": sum(episode.is_failure for episode in episodes),
        "stops": dict(Counter(episode.stop.value for episode in episodes)),
        "format_errors": sum(turn.action is None for episode in episodes for turn in episode.turns),
        "truncated_turns": sum(turn.truncated for episode in episodes for turn in episode.turns),
        "retried": sum(episode.attempts > 1 for episode in episodes),
        "tokens": tokens,
        "sampled_tokens": 0 if "parts" in job.inputs else tokens,
    }
