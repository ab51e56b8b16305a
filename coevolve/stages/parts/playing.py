"""Playing tasks as a stage: the policy or endpoint that plays, and the counts and costs of episodes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coevolve import seeds
from coevolve.config.baselines import EvaluationConfig
from coevolve.config.sections import EndpointConfig, RolloutConfig
from coevolve.envs.base import Setup
from coevolve.envs.workers import environments
from coevolve.errors import UserError
from coevolve.policies import endpoint, engines
from coevolve.policies.base import Policy
from coevolve.policies.endpoint import Usage
from coevolve.policies.engines import EngineSettings
from coevolve.records.episodes import Agent, Sampling, Task, Trajectory, Turn
from coevolve.records.evaluation import EpisodeNotes
from coevolve.rollout import PromptBuilder, rollout
from coevolve.storage import jsonl

#: Name of the journal of a job that plays once.
EPISODES = "episodes"
#: File name of the journal of an endpoint's token usage.
USAGE = "usage.jsonl"


@dataclass(frozen=True)
class PlaySettings:
    """The settings with which a job's episodes are played.

    `temperature` is that of exploration. `work` keeps journals, `policies` the settings of the `engine`.
    """

    env: Setup
    agent: Agent
    rollout: RolloutConfig
    temperature: float
    prompt: PromptBuilder
    seed: int
    work: Path
    threads: int
    engine: str
    policies: EngineSettings

    @property
    def explored(self) -> Sampling:
        """The sampling parameters of exploration."""
        return self.sampling(self.temperature)

    def sampling(self, temperature: float) -> Sampling:
        """The sampling parameters at a temperature."""
        config = self.rollout
        return Sampling(temperature=temperature, top_p=config.top_p, max_new_tokens=config.max_new_tokens)


def load_player(settings: PlaySettings, policy: Path | None, episodes: int) -> tuple[Policy, int]:
    """The policy in a directory, and how many of `episodes` it plays at once: the workers, or what memory allows."""
    import torch

    torch.set_num_threads(settings.threads)
    workers = min(settings.policies.workers, episodes)
    return engines.load_player(settings.engine, policy, replace(settings.policies, workers=workers))


def play(
    settings: PlaySettings,
    tasks: Sequence[Task],
    policy: Path,
    *,
    temperature: float,
    samples: int,
    prefixes: Sequence[Sequence[Turn]] | None = None,
    name: str = EPISODES,
) -> list[Trajectory]:
    """Episodes of every task in task order; episodes that a killed run finished are read back from the journal.

    The journal and the random draws depend on `name`.
    """
    player, workers = load_player(settings, policy, len(tasks) * samples)
    journal = jsonl.Journal(settings.work / f"{name}.jsonl", Trajectory)
    with environments(settings.env, workers) as envs:
        return rollout(
            tasks,
            player,
            envs,
            samples=samples,
            sampling=settings.sampling(temperature),
            seed=settings.seed if name == EPISODES else seeds.derive(settings.seed, name),
            agent=settings.agent,
            protocol=settings.env.protocol,
            retries=settings.rollout.retries,
            journal=journal,
            prompt=settings.prompt,
            prefixes=prefixes,
        )


def explore(settings: PlaySettings, tasks: Sequence[Task], policy: Path) -> list[Trajectory]:
    """K episodes of every task, at the temperature of exploration."""
    return play(settings, tasks, policy, temperature=settings.temperature, samples=settings.rollout.k)


def evaluate(settings: PlaySettings, tasks: Sequence[Task], policy: Path, rules: EvaluationConfig) -> list[Trajectory]:
    """Episodes of every task, with the number and temperature of the section `evaluation`."""
    return play(settings, tasks, policy, temperature=rules.temperature, samples=rules.samples)


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


def counts(
    episodes: Sequence[Trajectory],
    *,
    is_joined: bool = False,
    spent: dict[str, Any] | None = None,
    left_out: int | None = None,
) -> EpisodeNotes:
    """Counts of the episodes, which this job played unless it joined parts; `spent` is what an endpoint's cost."""
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
        sampled_tokens=0 if is_joined else tokens,
        spent=spent,
        left_out=left_out,
    )


def spending(work: Path, config: EndpointConfig | None) -> dict[str, Any] | None:
    """The cost of the endpoint's responses to the job with the work folder; None without an endpoint."""
    path = work / USAGE
    if config is None or not path.exists():
        return None
    return endpoint.spending(jsonl.read(path, Usage), config.price_in, config.price_out)
