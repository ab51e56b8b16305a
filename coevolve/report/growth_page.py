"""The section of the report page about pools of synthetic tasks: rewards, new tasks by signal, tasks solved later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from coevolve.report import task_growth
from coevolve.report.charts import BarRow, Curve, Segment, bar_rows, legend, line_chart, seed_curves
from coevolve.report.labels import ReportLabels
from coevolve.report.page_figures import PageChart, PageFigure
from coevolve.report.stats import group_by
from coevolve.report.task_growth import RoundGrowth

#: From rounds to points of a curve.
Points = Callable[[Sequence[RoundGrowth]], list[tuple[float, float]]]
#: Why a task was made, in the order of the colours.
CAUSES = ("unguided", "forgetting", "boundary", "rare")
#: Markdown files that the section shows: its table, and the second paper's numbers beside the suite's.
TEXTS = ("growth.md", "comparison.md")
TITLE = "The second paper: synthetic tasks"
CAPTION = (
    "Agent-data mutual evolution (arXiv 2604.15840). Reward: the target's training episodes on the pool, by round; the "
    "steps of a round divide it; thick: mean over seeds, thin: each seed. A step has few tasks, so its reward depends "
    "on which ones; the gain on a task is the score at a visit minus that at the task's first visit. New tasks: those "
    "that a round added to the pool, all seeds together, by the signal that caused them (unguided: none did). Solved "
    "later: the share of a round's new tasks that were visited in this or a later round and then reached the score of "
    "a solved task."
)


def pool_growth(path: Path, labels: ReportLabels) -> PageFigure:
    """The charts of `growth.json`, with its table and the second paper's numbers beside it."""
    rounds = task_growth.read(path)
    names = ["growth.json", "growth.svg", "growth.png"]
    return PageFigure(TITLE, CAPTION, names, list(_charts(rounds, labels)) if rounds else [], texts=TEXTS)


def _charts(rounds: Sequence[RoundGrowth], labels: ReportLabels) -> Iterator[PageChart]:
    methods = list(dict.fromkeys(each.method for each in rounds))
    yield PageChart("", legend((labels.method(name), labels.colour(name), "mean") for name in methods))
    for (env,), of_env in group_by(rounds, "env").items():
        title = f"{labels.env(env)}: training reward"
        rewards = _curves(of_env, methods, labels, task_growth.reward_curve)
        yield PageChart(title, line_chart(title, list(rewards), "round", "reward"))
        title = f"{labels.env(env)}: gain on a task since its first visit"
        gains = _curves(of_env, methods, labels, task_growth.gain_curve)
        if chart := line_chart(title, list(gains), "round", "gain"):
            yield PageChart(title, chart)
        yield PageChart("", legend((cause, colour, "thick") for colour, cause in enumerate(CAUSES)))
        rows = [
            _row(method, number, of_env, labels)
            for method in methods
            for number in sorted({each.round for each in of_env if each.method == method and each.new})
        ]
        yield PageChart(f"{labels.env(env)}: new tasks by signal", bar_rows([row for row, _ in rows]))
        yield PageChart(
            f"{labels.env(env)}: share of new tasks solved later", bar_rows([row for _, row in rows], full=1.0)
        )


def _curves(
    rounds: Sequence[RoundGrowth], methods: Sequence[str], labels: ReportLabels, curve: Points
) -> Iterator[Curve]:
    """The curve of each method, thick, and of each of its seeds."""
    for method in methods:
        of_method = [each for each in rounds if each.method == method]
        name, colour = labels.method(method), labels.colour(method)
        yield Curve(name, colour, curve(of_method), "mean")
        seeds = {each.seed for each in of_method}
        yield from seed_curves(name, colour, {s: curve([each for each in of_method if each.seed == s]) for s in seeds})


def _row(method: str, number: int, rounds: Sequence[RoundGrowth], labels: ReportLabels) -> tuple[BarRow, BarRow]:
    """The new tasks of one round by signal, and the share of them that is solved later; summed over seeds."""
    of_round = [each for each in rounds if (each.method, each.round) == (method, number)]
    counts = {cause: sum(each.new.get(cause, 0) for each in of_round) for cause in CAUSES}
    visited, solved = sum(each.visited for each in of_round), sum(each.solved for each in of_round)
    label, text = f"{labels.method(method)}, round {number}", ", ".join(f"{c} {n}" for c, n in counts.items() if n)
    parts = [Segment(cause, colour, counts[cause]) for colour, cause in enumerate(CAUSES)]
    share = Segment("solved", labels.colour(method), solved / max(1, visited))
    return (
        BarRow(label, [[part for part in parts if part.value]], text),
        BarRow(label, [[share]], f"{solved} of {visited} visited"),
    )
