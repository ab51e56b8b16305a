"""The tasks of a suite: scenarios are split, so all variants of a scenario are on the same side."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Literal

from coevolve.envs import task_split
from coevolve.envs.bfcl import scenarios
from coevolve.envs.bfcl.config import BfclSelection
from coevolve.envs.bfcl.scenarios import Scenario, UserTurn
from coevolve.envs.bfcl.suspects import suspects
from coevolve.envs.task_split import TaskSplit
from coevolve.errors import UserError
from coevolve.records.episodes import Scalar, Task

#: The classes that give a task its type; each scenario has exactly one of them.
KINDS = ("GorillaFileSystem", "VehicleControlAPI", "TradingBot", "TravelAPI")
TRAIN, VALIDATION = 100, 20
#: Evaluation splits of `scenario`: the part of the scenarios and the category.
EVALUATED = {
    "validation": ("validation", "base"),
    "test": ("test", "base"),
    "test_miss_param": ("test", "miss_param"),
    "test_miss_func": ("test", "miss_func"),
    "test_long_context": ("test", "long_context"),
}


def select(config: BfclSelection, splits: Collection[str], overlap: Literal["keep", "remove"]) -> TaskSplit:
    """The tasks that `config` selects; see `coevolve.envs.task_split.select`."""
    parts = scenario_parts(config.split)
    train = [task_of(category, index, "train") for category in config.train for index in parts["train"]]
    left_out = suspects() if config.suspects == "remove" else {}
    evaluation = {
        split: [task for i in parts[part] if (task := task_of(category, i, split)).task_id not in left_out]
        for split, (part, category) in EVALUATED.items()
        if part in parts
    }
    return task_split.select(config, train, evaluation, splits, overlap, KINDS)


@functools.cache
def scenario_parts(split: Literal["scenario", "halves"]) -> Mapping[str, tuple[int, ...]]:
    """The scenario numbers of each part: in the order of the sha256 of `bfcl/<number>`, or AgentEvolver's halves."""
    numbers = range(scenarios.SCENARIOS)
    if split == "halves":
        return {"train": tuple(numbers[:100]), "validation": tuple(numbers[100:])}
    ordered = sorted(numbers, key=lambda number: hashlib.sha256(f"bfcl/{number}".encode()).hexdigest())
    bounds = {"train": ordered[:TRAIN], "validation": ordered[TRAIN : TRAIN + VALIDATION]}
    return {name: tuple(part) for name, part in (bounds | {"test": ordered[TRAIN + VALIDATION :]}).items()}


def task_of(category: str, index: int, split: str) -> Task:
    """The task of a scenario's variant, such as `bfcl/base/3`."""
    classes = scenarios.scenario(category, index).classes
    kind = next(kind for kind in KINDS if kind in classes)
    data = {"category": category, "index": index}
    return Task(env="bfcl", task_id=f"bfcl/{category}/{index}", split=split, kind=kind, data=data)


def scenario_of(task: Task) -> Scenario:
    """The scenario of a task; that of a synthetic task has its user turns. Raises `UserError` for unusable data."""
    category, index = task.data.get("category"), task.data.get("index")
    if not isinstance(category, str) or not isinstance(index, int):
        raise UserError(f"task `{task.task_id}`: `data` must hold `category` and `index`.")
    scenario = scenarios.scenario(category, index)
    if "request" not in task.data:
        return scenario
    try:
        return dataclasses.replace(scenario, name=task.task_id, turns=_synthetic_turns(task.data))
    except (KeyError, TypeError, ValueError):
        problem = "`data` must hold `gold`, and can hold `turns`, a request for each call: lists as JSON"
        raise UserError(f"task `{task.task_id}`: {problem}.") from None


def _synthetic_turns(data: Mapping[str, Scalar]) -> tuple[UserTurn, ...]:
    """The user turns of a synthetic task: one, or one for each gold call."""
    gold = json.loads(str(data["gold"]))
    if "turns" not in data:
        return (UserTurn(str(data["request"]), tuple(gold)),)
    return tuple(UserTurn(text, (call,)) for text, call in zip(json.loads(str(data["turns"])), gold, strict=True))
