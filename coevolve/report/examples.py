"""Appendix C and D: failures of ETO's agent and of the failure agent on the same instruction, selected by a rule.

The rule: in the last iteration that both explored, the instructions on which both fail, by decreasing absolute
difference of their rewards, then by task id. Only the lowest seed and the first rollouts are used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coevolve import escaping
from coevolve.records.episodes import Agent, Trajectory
from coevolve.report.exploration import Exploration, of, trajectories
from coevolve.report.labels import STOPS

#: ETO's agent and the co-evolving method's failure agent.
SIDES: tuple[tuple[str, Agent], ...] = (("eto", "target"), ("coevolve", "failure"))
RULE = (
    "Selected by a rule: in each environment, in the last iteration that both explored, the instructions on which both "
    "fail and whose rewards differ most between ETO's agent and the failure agent, in either direction."
)
#: Maximum length of a displayed text, in characters.
MAX_LENGTH = 160


@dataclass(frozen=True)
class Example:
    """Failures of ETO's agent and of the failure agent on one instruction."""

    env: str
    iteration: int
    seed: int
    eto: Trajectory
    failure: Trajectory


def examples(explorations: Sequence[Exploration], env: str, count: int) -> list[Example]:
    """The `count` examples of an environment that the rule selects, the largest difference first.

    Their episodes are read from the files of the explorations; no others are held.
    """
    sides = [of(explorations, method, env, agent) for method, agent in SIDES]
    shared = set.intersection(*({(each.iteration, -each.seed) for each in side} for side in sides))
    if not shared:
        return []
    iteration, seed = max(shared)
    compared = [[each for each in side if (each.iteration, -each.seed) == (iteration, seed)] for side in sides]
    eto, failure = map(_rewards, compared)
    differing = [task for task in sorted(eto.keys() & failure.keys()) if eto[task] != failure[task]]
    # Rounded against floating-point noise.
    chosen = sorted(differing, key=lambda task: -abs(round(failure[task] - eto[task], 9)))[:count]
    episodes = [_failures(side, chosen) for side in compared]
    return [Example(env, iteration, -seed, *(of_side[task] for of_side in episodes)) for task in chosen]


def markdown(selected: Sequence[Example], labels: Mapping[str, str]) -> str:
    """The examples side by side, turn by turn; `labels` name environments."""
    parts = [f"# Failures of the same instruction\n\n{RULE}\n"]
    for example in selected:
        head = f"## {labels[example.env]}, {escaping.markdown(example.eto.task.task_id)}"
        where = f"Iteration {example.iteration}, seed {example.seed}."
        lines = example.eto.prompt[-1].content.splitlines()
        quoted = "\n".join(f"> {_inline(line)}" for line in lines if line.strip())
        parts.append(f"{head}\n\n{where}\n\n{quoted}\n\n{_turns(example)}")
    if not selected:
        parts.append("There is no instruction that both failed with different rewards.\n")
    return "\n".join(parts)


def _rewards(side: Sequence[Exploration]) -> dict[str, float]:
    """Rewards of the failures in the first rollouts, by task."""
    return {e.task_id: e.reward for each in side for e in each.episodes if e.sample == 0 and e.is_failure}


def _failures(side: Sequence[Exploration], tasks: Sequence[str]) -> dict[str, Trajectory]:
    """The failures of some tasks in the first rollouts."""
    episodes = (episode for each in side for episode in trajectories(Path(each.source)))
    return {e.task.task_id: e for e in episodes if e.sample == 0 and e.is_failure and e.task.task_id in tasks}


def _turns(example: Example) -> str:
    sides = (example.eto, example.failure)
    head = [
        f"{name}: reward {side.reward:.2f}, {len(side.turns)} turns, {STOPS[side.stop]}"
        for name, side in zip(("ETO", "failure agent"), sides, strict=True)
    ]
    turns = range(max(len(side.turns) for side in sides))
    rows = [f"| {turn + 1} | {' | '.join(_turn(side, turn) for side in sides)} |" for turn in turns]
    return "\n".join([f"| turn | {head[0]} | {head[1]} |", "|---|---|---|", *rows]) + "\n"


def _turn(side: Trajectory, index: int) -> str:
    if index >= len(side.turns):
        return ""
    turn = side.turns[index]
    return f"**{_inline(turn.action or turn.text)}** {_inline(turn.observation)}"


def _inline(text: str) -> str:
    """Text for a cell of a table: on one line, truncated and escaped."""
    line = " ".join(text.split())
    return escaping.markdown(line if len(line) <= MAX_LENGTH else f"{line[:MAX_LENGTH]}...")
