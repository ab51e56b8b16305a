"""Appendix C and D: what ETO's agent and the failure agent did on the same instruction, chosen by rule.

The rule: of the last iteration that both explored, the instructions on which both fail and their rewards differ most,
whichever is higher; equal differences in the order of task ids. The lowest seed and the first rollout count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coevolve.report.exploration import Exploration, of
from coevolve.types import Agent, Trajectory

#: ETO's agent and the co-evolving method's failure agent.
SIDES: tuple[tuple[str, Agent], ...] = (("eto", "target"), ("coevolve", "failure"))
RULE = (
    "Chosen by rule: on each environment, in the last iteration that both explored, the instructions that both fail "
    "and on which ETO's agent and the failure agent differ most in reward, whichever is higher."
)
#: Longest observation shown, in characters.
SHOWN = 160


@dataclass(frozen=True)
class Example:
    """Two failures of one instruction: ETO's agent's and the failure agent's."""

    env: str
    iteration: int
    seed: int
    eto: Trajectory
    failure: Trajectory

    @property
    def gap(self) -> float:
        """Reward of the failure agent's minus ETO's, without the noise of binary fractions."""
        return round(self.failure.reward - self.eto.reward, 9)


def examples(explorations: Sequence[Exploration], env: str, count: int) -> list[Example]:
    """The `count` examples of an environment that the rule chooses, the largest difference first."""
    sides = [of(explorations, method, env, agent) for method, agent in SIDES]
    shared = set.intersection(*({(one.iteration, -one.seed) for one in side} for side in sides))
    if not shared:
        return []
    iteration, seed = max(shared)
    first, second = (_failures(side, iteration, -seed) for side in sides)
    found = [
        Example(env, iteration, -seed, first[task], second[task])
        for task in sorted(first.keys() & second.keys())
        if first[task].reward != second[task].reward
    ]
    return sorted(found, key=lambda example: -abs(example.gap))[:count]


def markdown(chosen: Sequence[Example], labels: Mapping[str, str]) -> str:
    """The examples side by side, turn by turn; `labels` name environments."""
    parts = [f"# Failures of the same instruction\n\n{RULE}\n"]
    for example in chosen:
        head = f"## {labels[example.env]}, {example.eto.task.task_id}"
        where = f"Iteration {example.iteration}, seed {example.seed}."
        parts.append(f"{head}\n\n{where}\n\n{_quoted(example.eto.prompt[-1].content)}\n\n{_turns(example)}")
    return "\n".join(parts) if chosen else f"{parts[0]}\nNo instruction was failed by both with different rewards.\n"


def _failures(side: Sequence[Exploration], iteration: int, seed: int) -> dict[str, Trajectory]:
    """Failures of the first rollouts by task."""
    episodes = [e for one in side if (one.iteration, one.seed) == (iteration, seed) for e in one.episodes]
    return {e.task.task_id: e for e in episodes if e.is_failure and e.sample == 0}


def _turns(example: Example) -> str:
    sides = (example.eto, example.failure)
    head = [
        f"{name}: reward {side.reward:.2f}, {len(side.turns)} turns, {side.stop.value}"
        for name, side in zip(("ETO", "failure agent"), sides, strict=True)
    ]
    turns = range(max(len(side.turns) for side in sides))
    rows = [f"| {place + 1} | {' | '.join(_turn(side, place) for side in sides)} |" for place in turns]
    return "\n".join([f"| turn | {head[0]} | {head[1]} |", "|---|---|---|", *rows]) + "\n"


def _turn(side: Trajectory, place: int) -> str:
    if place >= len(side.turns):
        return ""
    turn = side.turns[place]
    return f"**{_inline(turn.action or turn.text)}** {_inline(turn.observation)}"


def _inline(text: str) -> str:
    """Text that fits a cell of a table: one line, cut, with nothing that Markdown reads as its own."""
    line = " ".join(text.split())
    cut = line if len(line) <= SHOWN else f"{line[:SHOWN]}..."
    return cut.translate({ord(sign): f"\\{sign}" for sign in "\\|*_`[]<>"})


def _quoted(text: str) -> str:
    return "\n".join(f"> {_inline(line)}" for line in text.splitlines() if line.strip())
