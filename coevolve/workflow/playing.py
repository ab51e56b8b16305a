"""Playing tasks as a stage: prompts, the policy or endpoint that plays, and the costs of episodes."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from coevolve import seeds
from coevolve.chat.prompts import prompt_messages
from coevolve.config.sections import EndpointConfig
from coevolve.envs.workers import environments
from coevolve.errors import UserError
from coevolve.policies import loading, openai
from coevolve.policies.base import Policy
from coevolve.policies.hf import TransformersPolicy
from coevolve.policies.openai import OpenAIPolicy, Usage
from coevolve.policies.vllm import VllmPolicy
from coevolve.rollout import PromptBuilder, rollout
from coevolve.storage import jsonl
from coevolve.types import EpisodeNotes, Sampling, Task, Trajectory, Turn
from coevolve.workflow.job import Job

#: Name of the journal of a job that plays once.
EPISODES = "episodes"
#: File name of the journal of an endpoint's token usage.
USAGE = "usage.jsonl"


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
    """Episodes of every task in task order; episodes that a killed run finished are read back from the journal.

    `policy` names the input that plays. The journal and the random draws depend on `name`.
    """
    config = job.suite.rollout
    sampling = Sampling(temperature=temperature, top_p=config.top_p, max_new_tokens=config.max_new_tokens)
    player, workers = load_player(job, policy, min(job.env.workers, len(tasks) * samples))
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
            prompt=prompt_builder(job),
            prefixes=prefixes,
        )


def prompt_builder(job: Job) -> PromptBuilder:
    """Builds a task's prompt: the experts' instruction, the few-shot example if the job has one, the task."""
    instruction = job.file("instruction").read_text(encoding="utf-8")
    return functools.partial(prompt_messages, instruction=instruction, example=job.few_shot_example("example"))


def load_player(job: Job, name: str, workers: int) -> tuple[Policy, int]:
    """The input policy called `name`, and the episodes it plays at once: `workers`, or what memory allows."""
    torch.set_num_threads(job.threads)
    model, path = job.model, job.policy(name)
    if model.endpoint:
        openai.check_ref(path, model.endpoint.model)
        journal = jsonl.Journal(job.work / USAGE, Usage)
        return OpenAIPolicy(model.endpoint, context=model.context, journal=journal), workers
    sampler, long_prompt = job.suite.sampler, job.suite.quirks.long_prompt
    if sampler.engine == "vllm":
        policy = VllmPolicy.load(
            path,
            context=model.context,
            long_prompt=long_prompt,
            gpu_memory_utilization=sampler.gpu_memory_utilization,
            max_num_seqs=sampler.max_num_seqs,
            tensor_parallel_size=sampler.tensor_parallel_size,
            dtype=sampler.dtype,
        )
        return policy, workers
    dtype = loading.compute_dtype(sampler.dtype)
    player = TransformersPolicy.load(path, slots=workers, context=model.context, long_prompt=long_prompt, dtype=dtype)
    # Without a slot, each turn of an episode would prefill the whole conversation.
    return player, min(workers, player.slots)


def exploration(job: Job, tasks: Sequence[Task]) -> list[Trajectory]:
    """K episodes of every task, at the job's temperature."""
    return play(job, tasks, temperature=job.suite.exploration_temperature, samples=job.suite.rollout.k)


def evaluation(job: Job, tasks: Sequence[Task]) -> list[Trajectory]:
    """Episodes of every task, with the number and temperature of the section `evaluation`."""
    rules = job.suite.evaluation
    return play(job, tasks, temperature=rules.temperature, samples=rules.samples)


def gathered(job: Job, tasks: Sequence[Task], samples: int) -> list[Trajectory]:
    """The episodes of all parts, in the order in which one job would have played them.

    Raises `UserError` unless the parts hold `samples` episodes of each listing of a task, and no others.
    """
    by_task: dict[str, list[Trajectory]] = {}
    for episode in (episode for path in job.inputs["parts"] for episode in jsonl.read(path, Trajectory)):
        by_task.setdefault(episode.task.task_id, []).append(episode)
    wanted = Counter({task_id: samples * n for task_id, n in Counter(task.task_id for task in tasks).items()})
    for task_id in wanted.keys() | by_task.keys():
        if (n := len(by_task.get(task_id, []))) != wanted[task_id]:
            problem = f"the parts hold {n} episodes of task `{task_id}`, not {wanted[task_id]}"
            raise UserError(f"{job.inputs['parts'][0]}: {problem}; delete `parts` and run again.")
    rest = {task_id: iter(episodes) for task_id, episodes in by_task.items()}
    return [episode for task in tasks for episode in itertools.islice(rest[task.task_id], samples)]


def counts(job: Job, episodes: Sequence[Trajectory], left_out: int | None = None) -> EpisodeNotes:
    """Counts of the episodes; of an endpoint's also what this job's answers cost."""
    turns = [turn for episode in episodes for turn in episode.turns]
    tokens = sum(len(turn.token_ids) for turn in turns)
    return EpisodeNotes(
        episodes=len(episodes),
        environments=tuple(sorted({episode.environment for episode in episodes})),
        mean_reward=sum(episode.reward for episode in episodes) / max(1, len(episodes)),
        failures=sum(episode.is_failure for episode in episodes),
        stops=Counter(episode.stop for episode in episodes),
        format_errors=sum(turn.action is None for turn in turns),
        truncated_turns=sum(turn.truncated for turn in turns),
        retried=sum(episode.attempts > 1 for episode in episodes),
        tokens=tokens,
        sampled_tokens=0 if "parts" in job.inputs else tokens,
        spent=spending(job, job.model.endpoint),
        left_out=left_out,
    )


def spending(job: Job, endpoint: EndpointConfig | None) -> dict[str, Any] | None:
    """The cost of the endpoint's responses to this job; None without an endpoint."""
    path = job.work / USAGE
    if endpoint is None or not path.exists():
        return None
    return openai.spending(jsonl.read(path, Usage), endpoint.price_in, endpoint.price_out)
