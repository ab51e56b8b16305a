"""The goals that a suite uses as tasks: ETO's lists, or the first goals for evaluation and the rest for training."""

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from coevolve import shipped
from coevolve.envs import task_split
from coevolve.envs.task_split import TaskSplit
from coevolve.envs.webshop.config import WebShopSelection
from coevolve.envs.webshop.goals import Goal
from coevolve.errors import UserError
from coevolve.records.episodes import Task
from coevolve.records.pairs import Drop, DropReason

DATA = shipped.DATA / "webshop"
#: The first goals, which WebShop and verl-agent keep for evaluation.
VERL_AGENT_TEST = 500


@dataclass(frozen=True)
class GoalLists:
    """Goal numbers for training and for evaluation, in their source's order; a list may contain a number twice."""

    train: tuple[int, ...]
    test: tuple[int, ...]

    @property
    def overlap(self) -> tuple[int, ...]:
        """Numbers in both lists, in the training list's order, each once."""
        return tuple(dict.fromkeys(number for number in self.train if number in set(self.test)))

    @property
    def duplicates(self) -> tuple[int, ...]:
        """Numbers that the training list contains more than once."""
        return tuple(number for number, count in Counter(self.train).items() if count > 1)


def select(
    config: WebShopSelection, goals: Sequence[Goal], splits: Collection[str], overlap: Literal["keep", "remove"]
) -> TaskSplit:
    """The tasks selected by `config`; see `coevolve.envs.task_split.select`.

    With `overlap` "remove", a task that is listed twice is kept once and its repetitions are drops. Raises `UserError`
    for a list with goals that the shop does not have.
    """
    lists = goal_lists(config, len(goals))
    train = tuple(dict.fromkeys(lists.train)) if overlap == "remove" else lists.train
    evaluated = {"test": [task_of(number, goals[number], "test") for number in lists.test]}
    tasks = [task_of(number, goals[number], "train") for number in train]
    kinds = dict.fromkeys(goal.category or "" for goal in goals)
    chosen = task_split.select(config, tasks, evaluated, splits, overlap, kinds)
    repeated = (Counter(lists.train) - Counter(train)).elements()
    drops = tuple(Drop(task_id=task_id(number), reason=DropReason.DUPLICATE) for number in repeated)
    return dataclasses.replace(chosen, drops=(*drops, *chosen.drops))


def goal_lists(config: WebShopSelection, goals: int) -> GoalLists:
    """The lists of the configured source for a shop with `goals` goals; raises `UserError` if it has too few."""
    if config.lists == "eto":
        lists = eto_lists()
        last = max(*lists.train, *lists.test)
        if last >= goals:
            raise UserError(
                f"key `tasks.lists`: ETO's lists reach goal {last}, this shop has {goals}; use upstream's catalogue "
                "with human goals, or lists `parts`."
            )
        return lists
    if config.lists == "verl_agent":
        return verl_agent_lists(goals)
    assert config.test is not None, "the configuration was validated without `tasks.test`"
    if config.test >= goals:
        raise UserError(f"key `tasks.test`: {config.test} of {goals} goals leave none for training; lower it.")
    return GoalLists(tuple(range(config.test, goals)), tuple(range(config.test)))


@functools.cache
def eto_lists() -> GoalLists:
    """ETO's lists: 1,824 numbers for training, one of them twice, and 200 for evaluation."""
    train, test = (json.loads((DATA / "eto" / f"{name}_indices.json").read_bytes()) for name in ("train", "test"))
    return GoalLists(tuple(train), tuple(test))


def verl_agent_lists(goals: int) -> GoalLists:
    """The 128 of the first 500 goals that verl-agent's first validation draws, and all goals from 500 on for training.

    Source: `WebshopMultiProcessEnv` of verl-agent at 2b558b0, with its script's seed 0, for validation plus 1,000.
    Later versions shuffle the goals in each worker. Raises `UserError` for a shop with at most 500 goals.
    """
    if goals <= VERL_AGENT_TEST:
        raise UserError(
            f"key `tasks.lists`: verl-agent's need more than {VERL_AGENT_TEST} goals, this shop has {goals}."
        )
    drawn = np.random.RandomState(1000).choice(VERL_AGENT_TEST, size=128, replace=False)
    return GoalLists(tuple(range(VERL_AGENT_TEST, goals)), tuple(drawn.tolist()))


def task_of(number: int, goal: Goal, split: str) -> Task:
    """The task of a goal, such as `webshop/2853`."""
    return Task(env="webshop", task_id=task_id(number), split=split, kind=goal.category or "", data={"goal": number})


def task_id(number: int) -> str:
    """Task id of the goal with this number."""
    return f"webshop/{number}"
