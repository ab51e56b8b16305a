"""Playing tasks as a stage: the policy or endpoint that plays, and the counts and costs of episodes."""

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from coevolve import seeds
from coevolve.config.suite import engine, exploration_temperature, quirks
from coevolve.envs.base import Env
from coevolve.envs.workers import environments
from coevolve.errors import UserError, brief
from coevolve.pipeline.job import Job
from coevolve.pipeline.stages.parts.environment import env_setup
from coevolve.pipeline.stages.parts.prompting import prompt_builder
from coevolve.policies import endpoint
from coevolve.policies.base import Conversation, EngineSettings, Policy, engine_player
from coevolve.policies.endpoint import Usage
from coevolve.policies.settings import EndpointConfig
from coevolve.records.episodes import Sampling, StopReason, Task, Trajectory, Turn
from coevolve.records.evaluation import EpisodeNotes
from coevolve.rollout import rollout
from coevolve.storage import jsonl

#: Name of the journal of a job that plays once.
EPISODES = "episodes"
#: File name of the journal of an endpoint's token usage.
USAGE = "usage.jsonl"


def sampling(job: Job, temperature: float) -> Sampling:
    """The job's sampling parameters at a temperature."""
    config = job.suite.rollout
    return Sampling(temperature=temperature, top_p=config.top_p, max_new_tokens=config.max_new_tokens)


def engine_settings(job: Job, episodes: int) -> EngineSettings:
    """The settings of the policy that plays up to `episodes` episodes of the job at once."""
    model = job.model
    return EngineSettings(
        context=model.context,
        long_prompt=quirks(job.suite).long_prompt,
        workers=min(job.env.workers, episodes),
        usage=job.work / USAGE,
        dtype=None if model.endpoint else job.suite.sampler.dtype,
        endpoint=model.endpoint,
        devices=job.devices,
    )


def load_player(job: Job, policy: Path | None, episodes: int) -> tuple[Policy, int]:
    """The policy in a directory, and the number of environments that it plays `episodes` in at once."""
    import torch

    torch.set_num_threads(job.threads)
    return engine_player(engine(job.suite, job.wildcards["model"]), policy, engine_settings(job, episodes))


def play(
    job: Job,
    tasks: Sequence[Task],
    policy: Path,
    *,
    temperature: float,
    samples: int,
    prefixes: Sequence[Sequence[Turn]] | None = None,
    name: str = EPISODES,
) -> list[Trajectory]:
    """Episodes of every task in task order, played by the policy in a directory; the random draws depend on `name`."""
    player = load_player(job, policy, len(tasks) * samples)
    seed = job.seed if name == EPISODES else seeds.derive(job.seed, name)
    return play_with(player, job, tasks, name, seed, sampling(job, temperature), samples, lambda env: prefixes)


def play_with(
    player: tuple[Policy, int],
    job: Job,
    tasks: Sequence[Task],
    name: str,
    seed: int,
    sampling: Sampling,
    samples: int,
    prefixes: Callable[[Env], Sequence[Sequence[Turn]] | None],
    ended: Callable[[Conversation], bool] | None = None,
) -> list[Trajectory]:
    """Episodes of every task in task order; those that a killed run finished are read back from the journal `name`.

    `player` comes with the number of environments that it needs; `prefixes` gives the turns that episodes begin with,
    and `ended` ends them.
    """
    policy, workers = player
    journal = jsonl.Journal(job.work / f"{name}.jsonl", Trajectory)
    with contextlib.closing(journal), environments(env_setup(job), workers) as envs:
        return rollout(
            tasks,
            policy,
            envs,
            samples=samples,
            sampling=sampling,
            seed=seed,
            agent=job.agent,
            protocol=job.suite.protocol,
            retries=job.suite.rollout.retries,
            journal=journal,
            prompt=prompt_builder(job),
            prefixes=prefixes(envs[0]),
            ended=ended,
            single_message=job.env.single_message,
        )


def explore(job: Job, tasks: Sequence[Task]) -> list[Trajectory]:
    """K episodes of every task by the input `policy`, at the temperature of exploration."""
    temperature, folder = exploration_temperature(job.suite), job.file("policy").parent
    return play(job, tasks, folder, temperature=temperature, samples=job.suite.rollout.k)


def evaluate(job: Job, tasks: Sequence[Task]) -> list[Trajectory]:
    """Episodes of every task by the input `policy`, as the section `evaluation` says.

    Raises `UserError` if the environment ended too many; a rerun plays those again.
    """
    rules, folder = job.suite.evaluation, job.file("policy").parent
    episodes = play(job, tasks, folder, temperature=rules.temperature, samples=rules.samples)
    lost = [episode for episode in episodes if episode.stop is StopReason.ENV_ERROR]
    if len(lost) > rules.max_env_errors * len(episodes):
        jsonl.write(
            job.work / f"{EPISODES}.jsonl", [each for each in episodes if each.stop is not StopReason.ENV_ERROR]
        )
        share = f"the environment ended {len(lost)} of {len(episodes)} episodes by an error"
        limit = f"key `evaluation.max_env_errors` allows a share of {rules.max_env_errors:g}"
        fix = "repair it and run the same command again, which plays them again"
        raise UserError(f"{job.wildcards['env']}: {share} ({brief(lost[0].error)}); {limit}; {fix}.")
    return episodes


def joined(parts: Sequence[Path], tasks: Sequence[Task], samples: int) -> list[Trajectory]:
    """The episodes of all parts, in the order in which one job would have played them.

    Raises `UserError` unless the parts hold `samples` episodes of each listing of a task, and no others.
    """
    by_task: dict[str, list[Trajectory]] = {}
    for episode in (episode for path in parts for episode in jsonl.read(path, Trajectory)):
        by_task.setdefault(episode.task.task_id, []).append(episode)
    wanted = Counter({task_id: samples * n for task_id, n in Counter(task.task_id for task in tasks).items()})
    for task_id in wanted.keys() | by_task.keys():
        if (n := len(by_task.get(task_id, []))) != wanted[task_id]:
            problem = f"the parts hold {n} episodes of task `{task_id}`, not {wanted[task_id]}"
            raise UserError(f"{parts[0]}: {problem}; delete `parts` and run again.")
    rest = {task_id: iter(episodes) for task_id, episodes in by_task.items()}
    return [episode for task in tasks for episode in itertools.islice(rest[task.task_id], samples)]


def counts(job: Job, episodes: Sequence[Trajectory], left_out: int | None = None) -> EpisodeNotes:
    """Counts of the episodes, which the job played unless it joined parts."""
    turns = [turn for episode in episodes for turn in episode.turns]
    tokens, joins = sum(len(turn.token_ids) for turn in turns), bool(job.inputs.get("parts"))
    draws = quirks(job.suite).webshop_draws == "each_job" and not joins
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
        sampled_tokens=0 if joins else tokens,
        spent=spending(job.work, job.model.endpoint),
        left_out=left_out,
        chance=env_setup(job).chance if draws else None,
    )


def spending(work: Path, config: EndpointConfig | None) -> dict[str, Any] | None:
    """The cost of the endpoint's responses to the job with the work folder; None without an endpoint."""
    path = work / USAGE
    if config is None or not path.exists():
        return None
    return endpoint.spending(jsonl.read(path, Usage), config.price_in, config.price_out)
