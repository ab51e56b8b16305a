"""Signals of a round's training episodes, without extra sampling.

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

import functools
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.agent_data.records import PoolTask, TaskSignal, Visit, visits
from coevolve.pipeline.branch import AgentName
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import ENVIRONMENT, Inputs, PlannedJob, Stage
from coevolve.records.episodes import Trajectory, Turn
from coevolve.storage import files, jsonl

if TYPE_CHECKING:
    from coevolve.agent_data.config import SignalKind, TaskEvolutionConfig

log = logging.getLogger(__name__)

#: The executed actions of some turns, and the pattern of an action (`coevolve.envs.synthesis.TaskSynthesis`).
Executed = Callable[[Sequence[Turn]], Sequence[str]]
Pattern = Callable[[str], str]
#: Reference solutions by task id.
Solutions = Mapping[str, Sequence[str]]


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `signals.jsonl`, the signals of the last round, and their numbers by kind, `summary.json`."""
    from coevolve.envs.synthesis import synthesis
    from coevolve.pipeline.stages.parts.environment import env_setup

    tasks = synthesis(job.env)
    rounds = [
        [episode for path in job.inputs[f"round{number}"] for episode in jsonl.read(path, Trajectory)]
        for number in range(1, job.branch.iteration)
    ]
    solutions = {each.task.task_id: each.solution for each in job.records("pool", PoolTask)}
    executed = functools.partial(tasks.executed, env_setup(job))
    signals = find_signals(job.suite.task_evolution, rounds, solutions, executed, tasks.pattern)
    jsonl.write(out / "signals.jsonl", signals)
    counts = Counter(signal.kind for signal in signals)
    summary: dict[str, Any] = {kind: counts[kind] for kind in job.suite.task_evolution.signals}
    files.write_json(out / "summary.json", summary)
    log.info("signals of round %d: %s", job.branch.iteration - 1, summary)
    return summary


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
            yield _signal("rare", visit, episode, actions, pattern=name, count=count, total=total)


def _failure(
    kind: SignalKind, visit: Visit, scores: tuple[float, ...], success: float, solutions: Solutions
) -> TaskSignal:
    """A signal of the first failure of a visit."""
    failed = next(episode for episode in visit.episodes if episode.reward < success)
    return _signal(kind, visit, failed, tuple(solutions[visit.task.task_id]), scores=scores)


def _signal(kind: SignalKind, visit: Visit, episode: Trajectory, actions: tuple[str, ...], **seen: Any) -> TaskSignal:
    task, number, step = visit.task, visit.round, visit.step
    return TaskSignal(kind=kind, task=task, round=number, step=step, episode=episode.digest(), actions=actions, **seen)


def inputs(pool: PlannedJob, rounds: Mapping[int, Mapping[AgentName, str]]) -> Inputs:
    """The last round's pool, and all agents' training episodes of the earlier rounds (`round1`, ...)."""
    of_rounds: Inputs = {f"round{number}": [*paths.values()] for number, paths in rounds.items()}
    return {"pool": pool["pool.jsonl"], **of_rounds}


STAGE = Stage(
    help="Compute the signals of a round's training episodes: forgetting, boundary, rare.",
    run=run,
    reads=(*ENVIRONMENT, "task_evolution"),
    files=("signals.jsonl", "summary.json"),
    modules=("synthesis",),
)
