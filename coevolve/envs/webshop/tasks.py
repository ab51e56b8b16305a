"""Which goals a suite uses as tasks: those of ETO's lists, or the first to evaluate and the rest to train on."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coevolve.envs import task_split
from coevolve.envs.base import Selection
from coevolve.envs.webshop.config import WebShopSelection
from coevolve.envs.webshop.goals import Goal
from coevolve.errors import UserError
from coevolve.types import Drop, DropReason, Task

DATA = Path(__file__).resolve().parents[3] / "data" / "webshop"


@dataclass(frozen=True)
class Lists:
    """Goal numbers to train on and to evaluate, in their source's order; a number may stand in a list twice."""

    train: tuple[int, ...]
    test: tuple[int, ...]

    @property
    def overlap(self) -> tuple[int, ...]:
        """Numbers in both lists, in the training list's order, each once."""
        return tuple(dict.fromkeys(number for number in self.train if number in set(self.test)))

    @property
    def duplicates(self) -> tuple[int, ...]:
        """Numbers that stand in the training list more than once."""
        return tuple(number for number, times in Counter(self.train).items() if times > 1)


def select(config: WebShopSelection, goals: Sequence[Goal], overlap: Literal["keep", "remove"]) -> Selection:
    """The tasks `config` asks for; see `coevolve.envs.task_split.select`.

    A task listed twice stays so under "keep", and is listed once under "remove"; the rest are drops. Raises `UserError`
    where a list names goals that the shop lacks.
    """
    lists = listed(config, len(goals))
    train = tuple(dict.fromkeys(lists.train)) if overlap == "remove" else lists.train
    evaluated = {"test": [task_of(number, goals[number], "test") for number in lists.test]}
    tasks = [task_of(number, goals[number], "train") for number in train]
    kinds = dict.fromkeys(goal.category or "" for goal in goals)
    chosen = task_split.select(config, tasks, evaluated, ("test",), overlap, kinds)
    again = (Counter(lists.train) - Counter(train)).elements()
    drops = tuple(Drop(task_id=task_id(number), reason=DropReason.DUPLICATE) for number in again)
    return dataclasses.replace(chosen, drops=(*drops, *chosen.drops))


def listed(config: WebShopSelection, goals: int) -> Lists:
    """The lists of the configured source for a shop of so many goals."""
    if config.lists == "eto":
        lists, last = eto(), max(*eto().train, *eto().test)
        if last >= goals:
            raise UserError(
                f"key `tasks.lists`: ETO's lists reach goal {last}, this shop has {goals}; use upstream's catalogue "
                "with human goals, or lists `parts`."
            )
        return lists
    assert config.test is not None, "no configuration with parts lacks the size of one"
    if config.test >= goals:
        raise UserError(f"key `tasks.test`: {config.test} of {goals} goals leave none to train on; lower it.")
    return Lists(tuple(range(config.test, goals)), tuple(range(config.test)))


@functools.cache
def eto() -> Lists:
    """ETO's own lists: 1,824 numbers to train on, one of them twice, and 200 to evaluate."""
    train, test = (json.loads((DATA / "eto" / f"{name}_indices.json").read_bytes()) for name in ("train", "test"))
    return Lists(tuple(train), tuple(test))


def task_of(number: int, goal: Goal, split: str) -> Task:
    """The task of a goal, such as `webshop/2853`."""
    return Task(env="webshop", task_id=task_id(number), split=split, kind=goal.category or "", data={"goal": number})


def task_id(number: int) -> str:
    """What the task of a goal's number is called."""
    return f"webshop/{number}"
