"""Signals in the episodes of GRPO, without extra sampling.

| signal | definition |
|---|---|
| forgetting | over the last W scores of a task: some s_i >= 0.5 and s_now < 0.5 |
| boundary | the K rollouts of one task in one step hold both successes and failures |
| rare | an action pattern p with 0 < c_p / N < theta / 100 |

A score is that of a trajectory: s_now fails if one of the current group does, and s_i succeeds if one of an earlier
visit did. With `score: group` it is the mean reward of the group. W counts visits, since the episodes of a group are
not each other's past. An episode whose environment failed has no reward. The rollouts of two agents that explore the
same tasks are one step, in which a task's group has the episodes of both.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from coevolve.agent_data.records import TaskSignal
from coevolve.records.episodes import Agent, StopReason, Task, Trajectory, Turn

if TYPE_CHECKING:
    from coevolve.agent_data.config import TaskEvolutionConfig
    from coevolve.config.names import SignalKind

#: The executed actions of some turns, and the pattern of an action (`coevolve.envs.synthesis.TaskSynthesis`).
Executed = Callable[[Sequence[Turn]], Sequence[str]]
Pattern = Callable[[str], str]
#: Reference solutions by task id.
Solutions = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Visit:
    """The group of episodes of one task in one step of a round; rounds count from 1, steps from 0."""

    task: Task
    round: int
    step: int
    episodes: tuple[Trajectory, ...]

    @property
    def score(self) -> float:
        """Mean reward of the group."""
        return fmean(episode.reward for episode in self.episodes)


def visits(rounds: Iterable[Iterable[Trajectory]]) -> list[Visit]:
    """The visits of all rounds in training order, without failed environments; an agent has one seed in a step."""
    groups: defaultdict[tuple[int, int, str], list[Trajectory]] = defaultdict(list)
    for number, episodes in enumerate(rounds, start=1):
        for step, episode in _numbered(episodes):
            if episode.stop is not StopReason.ENV_ERROR:
                groups[number, step, episode.task.task_id].append(episode)
    return [Visit(group[0].task, number, step, tuple(group)) for (number, step, _), group in groups.items()]


def _numbered(episodes: Iterable[Trajectory]) -> Iterator[tuple[int, Trajectory]]:
    """Each episode with the number of its step; the next step begins when the seed of an agent changes."""
    step, seeds = 0, dict[Agent, int]()
    for episode in episodes:
        if seeds.get(episode.agent, episode.seed) != episode.seed:
            step, seeds = step + 1, {}
        seeds[episode.agent] = episode.seed
        yield step, episode


def find_signals(
    config: TaskEvolutionConfig,
    rounds: Sequence[Sequence[Trajectory]],
    solutions: Solutions,
    executed: Executed,
    pattern: Pattern,
) -> list[TaskSignal]:
    """The signals of the last round, at most one of each kind and task (rare: and pattern), the last one seen."""
    history = visits(rounds)
    last = [visit for visit in history if visit.round == len(rounds)]
    signals: list[TaskSignal] = []
    if "forgetting" in config.signals:
        signals += forgetting(history, len(rounds), config, solutions)
    if "boundary" in config.signals:
        signals += boundary(last, config.success, solutions)
    if "rare" in config.signals:
        signals += rare(last, config.rare, executed, pattern)
    latest = {(signal.kind, signal.task.task_id, signal.pattern): signal for signal in signals}
    return list(latest.values())


def forgetting(
    history: Sequence[Visit], number: int, config: TaskEvolutionConfig, solutions: Solutions
) -> Iterator[TaskSignal]:
    """A signal for each visit in round `number` that fails a task which one of the last `window` ones solved."""
    best: defaultdict[str, list[float]] = defaultdict(list)
    for visit in history:
        rewards = [visit.score] if config.score == "group" else [episode.reward for episode in visit.episodes]
        now, before = min(rewards), best[visit.task.task_id][1 - config.window :]
        if visit.round == number and now < config.success <= max(before, default=-1.0):
            yield _failure("forgetting", visit, (*before, now), config.success, solutions)
        best[visit.task.task_id].append(max(rewards))


def boundary(last: Sequence[Visit], success: float, solutions: Solutions) -> Iterator[TaskSignal]:
    """A signal for each visit with successes and failures; its episode is the first failure."""
    for visit in last:
        rewards = tuple(episode.reward for episode in visit.episodes)
        if min(rewards) < success <= max(rewards):
            yield _failure("boundary", visit, rewards, success, solutions)


def rare(last: Sequence[Visit], percent: float, executed: Executed, pattern: Pattern) -> Iterator[TaskSignal]:
    """A signal for the first episode of each pattern whose share of the round's actions is below `percent` (theta)."""
    counts: Counter[str] = Counter()
    first: dict[str, tuple[Visit, Trajectory, tuple[str, ...]]] = {}
    for visit in last:
        for episode in visit.episodes:
            actions = tuple(executed(episode.turns))
            for number, action in enumerate(actions, start=1):
                counts[pattern(action)] += 1
                first.setdefault(pattern(action), (visit, episode, actions[:number]))
    total = counts.total()
    for name, count in counts.items():
        if 100 * count < percent * total:
            visit, episode, actions = first[name]
            yield TaskSignal(
                kind="rare",
                task=visit.task,
                round=visit.round,
                step=visit.step,
                episode=episode.digest(),
                actions=actions,
                pattern=name,
                count=count,
                total=total,
            )


def _failure(
    kind: SignalKind, visit: Visit, scores: tuple[float, ...], success: float, solutions: Solutions
) -> TaskSignal:
    """A signal of the first failure of a visit."""
    failed = next(episode for episode in visit.episodes if episode.reward < success)
    return TaskSignal(
        kind=kind,
        task=visit.task,
        round=visit.round,
        step=visit.step,
        episode=failed.digest(),
        actions=tuple(solutions[visit.task.task_id]),
        scores=scores,
    )
