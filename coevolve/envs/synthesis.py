"""Task synthesis: explored actions become a task with a reference solution.

`TaskSynthesis` is the contract of the module `synthesis` of an environment's package. An *open* task has no goal; it
begins in the state of a training task. A *fragment* is a part of an episode of an open task.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from coevolve.config.kinds import EnvConfig
from coevolve.envs import registry
from coevolve.envs.base import Env, EnvError, Setup
from coevolve.envs.experts import fixed_script, play_expert
from coevolve.errors import UserError
from coevolve.records.episodes import Task, Trajectory, Turn

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskDraft:
    """The instruction of a new task, and the actions of its reference solution in order."""

    instruction: str
    solution: tuple[str, ...]


class TaskSynthesis(Protocol):
    """The module `synthesis` of an environment's package. All functions are pure; none executes an action."""

    def open_task(self, start: Task, name: str, instruction: str) -> Task:
        """A task `name` that shows `instruction` and begins in the state of `start`; nothing in it earns a reward."""

    def propose(
        self, setup: Setup, task: Task, turns: Sequence[Turn], favoured: Sequence[str], rng: np.random.Generator
    ) -> str:
        """The next action of scripted exploration: a documented one near a pattern in `favoured`, if there are any."""

    def write(self, setup: Setup, task: Task, action: str) -> str:
        """The text of a turn with this action."""

    def executed(self, setup: Setup, turns: Sequence[Turn]) -> tuple[str, ...]:
        """The actions of `turns` that the environment executed, without those that end a task; at most one of a turn.

        The actions of the first turns are the first actions.
        """

    def pattern(self, action: str) -> str:
        """What counts as the same kind of action: the action without its values."""

    def normalised(self, setup: Setup, start: Task, action: str) -> str:
        """The same text for actions that differ in notation only."""

    def describe(self, setup: Setup, start: Task, actions: Sequence[str]) -> TaskDraft | None:
        """An instruction by rules, and the reference solution; None if the actions reach nothing to ask for."""

    def goal_task(self, setup: Setup, start: Task, name: str, draft: TaskDraft) -> Task:
        """The task of a draft, with everything in `data` that an environment needs to start and reward it.

        `data["request"]` is the draft's instruction, which the prompts of exploring models quote.
        """

    def solution_texts(self, setup: Setup, task: Task) -> Sequence[str]:
        """The texts of the turns that execute the reference solution of a task made by `goal_task`."""

    def reference_solution(self, task: Task) -> Sequence[str]:
        """The actions of any task's reference solution, in the form of a draft's; none if the task does not hold it."""


def synthesis(config: EnvConfig) -> TaskSynthesis:
    """The task synthesis of an environment; raises `UserError` if it has none."""
    module = registry.optional(config.kind, "synthesis")
    if module is None:
        raise UserError(
            f"environment `{config.kind}` makes no tasks: its package has no module `synthesis`; "
            "see docs/extend/add_an_environment.md, or take another method."
        )
    return cast(TaskSynthesis, module)


def execute_solution(env: Env, task: Task, texts: Sequence[str], setup: Setup, retries: int = 0) -> Trajectory:
    """The episode of a reference solution from a fresh reset; raises the `EnvError` that follows `retries` others."""
    for _ in range(retries):
        try:
            return play_expert(env, task, fixed_script(texts), "", setup.protocol)
        except EnvError as error:
            log.warning("%s: %s", task.task_id, error)
    return play_expert(env, task, fixed_script(texts), "", setup.protocol)
