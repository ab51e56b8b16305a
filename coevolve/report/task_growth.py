"""How a pool of synthetic tasks grows: reward by training step, new tasks by signal, and how many are solved later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter
from tabulate import tabulate

from coevolve.methods.task_evolution.records import PoolTask
from coevolve.methods.task_evolution.signals import visits
from coevolve.report import drawing
from coevolve.types import Record, Trajectory

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class RoundGrowth(Record):
    """A round of one training.

    `rewards` are the mean rewards of the training episodes by step. `pool` is the number of tasks, `new` how many of
    them the round added by signal (`unguided`: none). `visited` counts the added tasks with training episodes in this
    or a later round, `solved` those with a score of at least `success` then.
    """

    method: str
    env: str
    seed: int
    round: int
    rewards: tuple[float, ...]
    pool: int
    new: dict[str, int]
    visited: int
    solved: int


def growth(
    method: str, env: str, seed: int, rounds: Sequence[Sequence[Trajectory]], pool: Sequence[PoolTask], success: float
) -> list[RoundGrowth]:
    """The growth in each of the `rounds`, given by their training episodes; `pool` is that of the last round."""
    history = visits(rounds)
    made = []
    for number in range(1, len(rounds) + 1):
        scores: dict[int, list[float]] = {}
        for visit in history:
            if visit.round == number:
                scores.setdefault(visit.step, []).extend(episode.reward for episode in visit.episodes)
        new = [task for task in pool if task.round == number]
        names = {task.task.task_id for task in new}
        seen = [visit for visit in history if visit.task.task_id in names]
        made.append(
            RoundGrowth(
                method=method,
                env=env,
                seed=seed,
                round=number,
                rewards=tuple(sum(rewards) / len(rewards) for _, rewards in sorted(scores.items())),
                pool=sum(task.round <= number for task in pool),
                new=dict(sorted(Counter(task.signal or "unguided" for task in new).items())),
                visited=len({visit.task.task_id for visit in seen}),
                solved=len({visit.task.task_id for visit in seen if visit.score >= success}),
            )
        )
    return made


def markdown(rounds: Sequence[RoundGrowth], labels: Mapping[str, str]) -> str:
    """A row for each method, environment and round; means over the seeds."""
    groups: dict[tuple[str, str, int], list[RoundGrowth]] = {}
    for each in rounds:
        groups.setdefault((each.method, each.env, each.round), []).append(each)
    head = ("method", "environment", "round", "reward, first step", "reward, last step", "tasks", "new", "solved later")
    rows = [(labels[method], env, number, *_means(group)) for (method, env, number), group in groups.items()]
    return str(tabulate(rows, headers=head, tablefmt="github", disable_numparse=True)) + "\n"


def draw(rounds: Sequence[RoundGrowth], labels: Mapping[str, str]) -> Figure:
    """The figure: a panel per environment, training reward by round; methods as lines, means over the seeds."""
    envs = list(dict.fromkeys(each.env for each in rounds))
    figure = drawing.new_figure(5.0 * max(1, len(envs)), 3.2)
    panels = figure.subplots(1, max(1, len(envs)), squeeze=False, sharey=True)[0]
    for axes, env in zip(panels, envs, strict=False):
        for method in dict.fromkeys(each.method for each in rounds if each.env == env):
            curve = reward_curve([each for each in rounds if (each.env, each.method) == (env, method)])
            axes.plot(*zip(*curve, strict=True), marker="." if curve[0][0] == 1.0 else "", label=labels[method])
        axes.set(title=env, xlabel="round")
        axes.legend()
    panels[0].set_ylabel("training reward")
    return figure


def reward_curve(rounds: Sequence[RoundGrowth]) -> list[tuple[float, float]]:
    """The training reward by step over all rounds of a method, the mean over its seeds.

    The steps of a round divide it: those of round 2 with two steps are at 1.5 and 2.
    """
    rewards: dict[float, list[float]] = {}
    for each in rounds:
        for step, reward in enumerate(each.rewards, start=1):
            rewards.setdefault(each.round - 1 + step / len(each.rewards), []).append(reward)
    return [(position, sum(values) / len(values)) for position, values in sorted(rewards.items())]


def read(path: Path) -> list[RoundGrowth]:
    """The rounds in `growth.json`."""
    return TypeAdapter(list[RoundGrowth]).validate_json(path.read_bytes())


def _means(group: Sequence[RoundGrowth]) -> tuple[str, ...]:
    """The numbers of a row as texts."""
    new: Counter[str] = Counter()
    for each in group:
        new.update(each.new)
    visited = sum(each.visited for each in group)
    ends = [sum(each.rewards[step] for each in group) / len(group) for step in (0, -1)]
    return (
        *(f"{mean:.3f}" for mean in ends),
        f"{sum(each.pool for each in group) / len(group):.0f}",
        ", ".join(f"{name} {count / len(group):.1f}" for name, count in sorted(new.items())) or "none",
        f"{sum(each.solved for each in group)} of {visited} visited",
    )
