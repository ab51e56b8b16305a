"""Growth of a pool of synthetic tasks: reward by training step, new tasks by signal, and later solved tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from tabulate import tabulate

from coevolve.agent_data.records import PoolTask, visits
from coevolve.records.base import Record
from coevolve.records.episodes import Trajectory
from coevolve.records.evaluation import ResultFile
from coevolve.report import drawing, estimation, stats
from coevolve.report.drawing import BarRow
from coevolve.report.labels import ReportLabels
from coevolve.storage import jsonl

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Why a task was made, in the order of the colours.
CAUSES = ("unguided", "forgetting", "boundary", "rare")
_SOLVED = "share of new tasks solved later"


class RoundGrowth(Record):
    """A round of one training.

    `rewards` are the mean rewards of the training episodes by step, without steps in which every environment failed.
    `pool` is the number of tasks, `new` how many of them the round added by signal (`unguided`: none). `visited` counts
    the added tasks with training episodes in this or a later round, `solved` those with a score of at least `success`
    then. `gains`: of each visit to a task that had been visited before, its score minus that of the task's first visit.
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
    gains: tuple[float, ...]


def read(
    episodes: Iterable[ResultFile], pools: Iterable[ResultFile], success: Mapping[str, float]
) -> list[RoundGrowth]:
    """The growth of the pools in files of rounds; `success`: from which score on a task is solved, by method."""
    last = {(file.method, file.env, file.seed): Path(file.path) for file in pools}  # of the last round
    rounds = []
    for (method, env, seed), files in stats.group_by(episodes, "method", "env", "seed").items():
        played = [jsonl.read(Path(file.path), Trajectory) for file in files]
        pool = jsonl.read(last[method, env, seed], PoolTask)
        rounds += growth(method, env, seed, played, pool, success[method])
    return rounds


def growth(
    method: str, env: str, seed: int, rounds: Sequence[Sequence[Trajectory]], pool: Sequence[PoolTask], success: float
) -> list[RoundGrowth]:
    """The growth in each of the `rounds`, given by their training episodes; `pool` is that of the last round."""
    history = visits(rounds)
    first = {visit.task.task_id: visit for visit in reversed(history)}
    made = []
    for number in range(1, len(rounds) + 1):
        of_round = [visit for visit in history if visit.round == number]
        scores = [
            [episode.reward for visit in of_step for episode in visit.episodes]
            for of_step in stats.group_by(of_round, "step").values()
        ]
        again = [visit for visit in of_round if visit is not first[visit.task.task_id]]
        new = [task for task in pool if task.round == number]
        names = {task.task.task_id for task in new}
        seen = [visit for visit in history if visit.task.task_id in names]
        made.append(
            RoundGrowth(
                method=method,
                env=env,
                seed=seed,
                round=number,
                rewards=tuple(sum(rewards) / len(rewards) for rewards in scores),
                pool=sum(task.round <= number for task in pool),
                new=dict(sorted(Counter(task.signal or "unguided" for task in new).items())),
                visited=len({visit.task.task_id for visit in seen}),
                solved=len({visit.task.task_id for visit in seen if visit.score >= success}),
                gains=tuple(visit.score - first[visit.task.task_id].score for visit in again),
            )
        )
    return made


def markdown(rounds: Sequence[RoundGrowth], labels: ReportLabels, confidence: float) -> str:
    """A row for each method, environment and round: means over the seeds, of gains with Student's interval."""
    head = ("method", "environment", "round", "reward", "gain on a task", "tasks", "new", "solved later")
    rows = [
        (labels.method(method), labels.env(env), number, *_means(group, confidence))
        for (method, env, number), group in stats.group_by(rounds, "method", "env", "round").items()
    ]
    return str(tabulate(rows, headers=head, tablefmt="github", disable_numparse=True)) + "\n"


def draw(rounds: Sequence[RoundGrowth], labels: ReportLabels) -> Figure:
    """The figure: training reward by round, and gain on a task if one was visited again, by environment."""
    charts = [
        (f"{labels.env(env)}: {title}", quantity, curve, of_env)
        for (env,), of_env in stats.group_by(rounds, "env").items()
        for title, quantity, curve in _CURVES
        if curve(of_env)
    ]
    figure, panels = drawing.panels("Growth of the pools", len(charts))
    for axes, (title, quantity, curve, of_env) in zip(panels, charts, strict=True):
        drawing.label(axes, title, "round", quantity)
        for (method,), of_method in stats.group_by(of_env, "method").items():
            seeds = {seed: curve(of_seed) for (seed,), of_seed in stats.group_by(of_method, "seed").items()}
            drawing.curves(axes, labels.method(method), labels.colour(method), curve(of_method), seeds)
    drawing.legend(figure)
    return figure


def draw_new_tasks(rounds: Sequence[RoundGrowth], labels: ReportLabels) -> Figure:
    """The figure: the new tasks of each round by signal, and the share of them that is solved later, seeds summed."""
    charts: dict[str, list[BarRow]] = {}
    for (env, method, number), of_round in stats.group_by(rounds, "env", "method", "round").items():
        if any(each.new for each in of_round):
            for title, (parts, text) in _new_tasks(of_round).items():
                row = BarRow(f"{labels.method(method)}, round {number}", [parts], text)
                charts.setdefault(f"{labels.env(env)}: {title}", []).append(row)
    return drawing.bars("New tasks", charts, {title: 1.0 for title in charts if title.endswith(_SOLVED)})


def _new_tasks(of_round: Sequence[RoundGrowth]) -> dict[str, tuple[list[tuple[str, int, float]], str]]:
    counts = {cause: sum(each.new.get(cause, 0) for each in of_round) for cause in CAUSES}
    parts = [(cause, colour, float(count)) for colour, (cause, count) in enumerate(counts.items()) if count]
    visited, solved = sum(each.visited for each in of_round), sum(each.solved for each in of_round)
    return {
        "new tasks by signal": (parts, ", ".join(f"{cause} {count:g}" for cause, _, count in parts)),
        _SOLVED: ([("solved later", len(CAUSES), solved / max(1, visited))], f"{solved} of {visited} visited"),
    }


def reward_curve(rounds: Sequence[RoundGrowth]) -> list[tuple[float, float]]:
    """The training reward by step, the mean over a method's seeds; a round's steps divide it: two are at 0.5 and 1."""
    return stats.mean_curve(
        (each.round - 1 + step / len(each.rewards), reward)
        for each in rounds
        for step, reward in enumerate(each.rewards, start=1)
    )


def gain_curve(rounds: Sequence[RoundGrowth]) -> list[tuple[float, float]]:
    """The mean of `gains` by round of a method, the mean over its seeds; rounds without a second visit are left out."""
    return stats.mean_curve((each.round, fmean(each.gains)) for each in rounds if each.gains)


#: Title of a panel, its quantity, and its points.
_CURVES = (("training reward", "reward", reward_curve), ("gain on a task since its first visit", "gain", gain_curve))


def _means(group: Sequence[RoundGrowth], confidence: float) -> tuple[str, ...]:
    new = sum((Counter(each.new) for each in group), Counter[str]())
    visited = sum(each.visited for each in group)
    reward = stats.mean_of(fmean(each.rewards) for each in group if each.rewards)
    return (
        "-" if reward is None else f"{reward:.3f}",
        _gain([fmean(each.gains) for each in group if each.gains], confidence),
        f"{sum(each.pool for each in group) / len(group):.0f}",
        ", ".join(f"{name} {count / len(group):.1f}" for name, count in sorted(new.items())) or "none",
        f"{sum(each.solved for each in group)} of {visited} visited",
    )


def _gain(means: Sequence[float], confidence: float) -> str:
    if not means:
        return "-"
    interval = estimation.interval(means, 0.0, confidence)
    return f"{fmean(means):+.3f}" + (f" [{interval[0]:+.3f}, {interval[1]:+.3f}]" if interval else "")
