"""The sections of the report page that show figures: title, caption, and the files of products."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coevolve.report import figure3, training_figure
from coevolve.report.analysis import Analysis
from coevolve.report.costs import Line
from coevolve.report.figure2 import FailureFigure
from coevolve.report.task_growth import RoundGrowth
from coevolve.storage import product_file

_REWARDS = "Number of failed explorations by reward, in ten equal bins of [0, 1), all seeds together."
_PAIRS = "Candidates of each pair kind, all seeds together: those that became pairs, and those dropped, by reason."
_COSTS = "Time of the jobs that ran, as predicted for the machine and as measured; jobs side by side add up."
_MECHANISM = (
    "By iteration, means over seeds. Hard negatives: share of an agent's explorations (dashed: the failure agent). "
    "Log-probs of experts and of the target's own episodes: in nats a trajectory, a line for each of the target's "
    "trainings. Rejected sides: log-prob of an action token under the reference policy, by pair kind. Share of weight: "
    "lambda_DPO * beta * sigma(-margin) over a kind's pairs, which is no share of the gradient."
)
_GRADIENTS = (
    " Share of gradient: norm of eq. 9's gradient over a kind's pairs, of the sum of these norms over kinds, at the "
    "policy that the target's training starts from. analysis.md has the cosines between kinds."
)
_TRAININGS = (
    "By optimiser step, iterations one after another with a line between them. Thick: mean over seeds; thin: each "
    "seed, where there are several. Values of pairs are means over the pairs of a step: the margin is that of the "
    "implicit rewards, log-probs are in nats (solid: chosen, dashed: rejected). Gold log-probs are those of a "
    "sample of the training's experts, before and after it. A training with more than "
    f"{training_figure.POINTS} steps is drawn as means over equal numbers of steps."
)
_GROWTH = (
    "Agent-data mutual evolution (arXiv 2604.15840). Reward: the target's training episodes on the pool, by round; the "
    "steps of a round divide it; thick: mean over seeds, thin: each seed. A step has few tasks, so its reward depends "
    "on which ones; the gain on a task is the score at a visit minus that at the task's first visit. New tasks: those "
    "that a round added to the pool, all seeds together, by the signal that caused them (unguided: none did). Solved "
    "later: the share of a round's new tasks that were visited in this or a later round and then reached the score of "
    "a solved task."
)


def _learning_curves(path: Path) -> str:
    caption = product_file.read(path, figure3.Curves).caption
    return f"{caption} Thick: mean over seeds; thin: each seed, where there are several."


def _failures(path: Path) -> str:
    data = product_file.read(path, FailureFigure)
    return data.caption if data.panels else ""


def _mechanism(path: Path) -> str:
    data = product_file.read(path, Analysis)
    measured = data.hard_negatives or data.off_policy or data.kind_weights or data.gradients
    return (_MECHANISM + (_GRADIENTS if data.gradients else "")) if measured else ""


@dataclass(frozen=True)
class FigureSection:
    """A section of the page; its `caption` is made from the product's file `data`, empty if nothing was measured."""

    title: str
    data: str
    caption: Callable[[Path], str]
    images: tuple[str, ...]
    texts: tuple[str, ...] = ()


#: In the order of the page, above the verdicts.
SECTIONS = (
    FigureSection("Learning curves", "figure3.json", _learning_curves, ("figure3.svg",)),
    FigureSection(
        "Rewards of failures",
        "analysis.json",
        lambda path: _REWARDS if product_file.read(path, Analysis).failure_rewards else "",
        ("failure_rewards.svg",),
    ),
    FigureSection("Figure 2: failures", "figure2.json", _failures, ("figure2.svg",)),
    FigureSection(
        "Pairs and drops",
        "pairs.json",
        lambda path: _PAIRS if product_file.read(path, list[dict[str, Any]]) else "",
        ("pairs.svg",),
    ),
    FigureSection(
        "The second paper: synthetic tasks",
        "growth.json",
        lambda path: _GROWTH if product_file.read(path, list[RoundGrowth]) else "",
        ("growth.svg", "new_tasks.svg"),
        ("growth.md", "comparison.md"),
    ),
    FigureSection(
        "Costs",
        "costs.json",
        lambda path: _COSTS if product_file.read(path, dict[str, list[Line]]) else "",
        ("costs.svg",),
    ),
)
#: Those below the verdicts.
FURTHER = (
    FigureSection("Mechanism", "analysis.json", _mechanism, ("mechanism.svg",)),
    FigureSection("Training curves", training_figure.NAME, lambda path: _TRAININGS, (training_figure.NAME,)),
)
