"""Which ScienceWorld tasks a suite uses: ETO's lists or the official splits, cut by configuration, in list order."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coevolve.config import TaskSelection
from coevolve.errors import UserError
from coevolve.types import Drop, DropReason, Task

DATA = Path(__file__).resolve().parents[3] / "data" / "sciworld"
#: What the simulator's own Python package allows; used for the six task types that ETO leaves out.
PACKAGE_STEP_LIMIT = 100

Split = Literal["train", "seen", "unseen"]
#: The name of each split in either source: ETO calls the development list "seen" and the test list "unseen".
SPLITS: dict[Split, str] = {"train": "train", "seen": "dev", "unseen": "test"}


@dataclass(frozen=True)
class Selection:
    """The tasks of a suite. `sft` and `explore` are disjoint unless `explore_sft` lets exploration repeat `sft`.

    `overlap` names the training tasks that the source also uses for evaluation; `drops` those removed for it.
    """

    sft: tuple[Task, ...]
    explore: tuple[Task, ...]
    seen: tuple[Task, ...]
    unseen: tuple[Task, ...]
    overlap: tuple[str, ...]
    drops: tuple[Drop, ...]


def select(config: TaskSelection, splits: Collection[str], overlap: Literal["keep", "remove"]) -> Selection:
    """The tasks `config` asks for; evaluation splits not named in `splits` stay empty.

    Training tasks that stand in *any* evaluation list of the source count as overlap, whether or not this suite
    evaluates them. Raises `UserError` naming the key that leaves a list empty.
    """
    lists = {split: _of_kinds(listed(config.lists, split), config.kinds) for split in SPLITS}
    evaluated = {task.task_id for split in ("seen", "unseen") for task in lists[split]}
    shared = tuple(task.task_id for task in lists["train"] if task.task_id in evaluated)
    removed = set(shared) if overlap == "remove" else set()
    train = [task for task in lists["train"] if task.task_id not in removed]
    sft = _first(train, config.sft)
    rest = train if config.explore_sft else _without(train, sft)
    selection = Selection(
        sft=sft,
        explore=_first(rest, config.explore),
        seen=_first(lists["seen"], config.evaluate) if "seen" in splits else (),
        unseen=_first(lists["unseen"], config.evaluate) if "unseen" in splits else (),
        overlap=shared,
        drops=tuple(Drop(task_id=task_id, reason=DropReason.OVERLAP) for task_id in shared if task_id in removed),
    )
    _refuse_empty(selection, splits)
    return selection


@functools.cache
def listed(source: Literal["eto", "official"], split: Split) -> tuple[Task, ...]:
    """All tasks of one split, in the source's order (official: by task type, then variation)."""
    if source == "eto":
        names = _names()
        pairs = [(names[old], variation) for old, variation in _json(f"eto/{SPLITS[split]}.json")]
    else:
        column = list(SPLITS).index(split)
        pairs = [(kind, variation) for kind, columns in _official().items() for variation in columns[column]]
    return tuple(task_of(kind, variation, split) for kind, variation in pairs)


def task_of(kind: str, variation: int, split: str) -> Task:
    """The task of a simulator's task type and variation, such as `sciworld/find-animal/12`."""
    data = {"task": kind, "variation": variation}
    return Task(env="sciworld", task_id=f"sciworld/{kind}/{variation}", split=split, kind=kind, data=data)


def step_limit(kind: str) -> int:
    """ETO's step limit for a task type, else the package's."""
    return _limits().get(kind, PACKAGE_STEP_LIMIT)


def kind_of_number(number: str) -> str | None:
    """The simulator's name of the task type that ETO numbers so, None if there is none."""
    return _numbers().get(number)


def kinds() -> tuple[str, ...]:
    """The simulator's thirty task types, in its order."""
    return tuple(_official())


def _of_kinds(tasks: Iterable[Task], wanted: Sequence[str] | None) -> tuple[Task, ...]:
    unknown = [kind for kind in wanted or () if kind not in kinds()]
    if unknown:
        raise UserError(f"key `tasks.kinds`: unknown task type `{unknown[0]}`; known are {', '.join(kinds())}.")
    return tuple(task for task in tasks if wanted is None or task.kind in wanted)


def _first(tasks: Iterable[Task], limit: int | None) -> tuple[Task, ...]:
    """The first `limit` tasks of each type, in order."""
    count: Counter[str] = Counter()
    taken = []
    for task in tasks:
        count[task.kind] += 1
        if limit is None or count[task.kind] <= limit:
            taken.append(task)
    return tuple(taken)


def _without(tasks: Iterable[Task], others: Iterable[Task]) -> list[Task]:
    taken = {task.task_id for task in others}
    return [task for task in tasks if task.task_id not in taken]


def _refuse_empty(selection: Selection, splits: Collection[str]) -> None:
    wanted = {"sft": "tasks.sft", "explore": "tasks.explore"} | dict.fromkeys(splits, "splits")
    for name, key in wanted.items():
        if not getattr(selection, name):
            raise UserError(
                f"key `{key}`: the list `{name}` is empty for these `tasks.kinds` and limits; widen one of them."
            )


@functools.cache
def _names() -> dict[str, str]:
    """ETO's name of a task type -> the simulator's."""
    return dict(_json("eto/names.json"))


@functools.cache
def _numbers() -> dict[str, str]:
    return {str(number): _names()[old] for old, number in _json("eto/numbers.json").items()}


@functools.cache
def _limits() -> dict[str, int]:
    return {_names()[old]: limit for old, limit in _json("eto/max_steps.json").items()}


@functools.cache
def _official() -> dict[str, list[list[int]]]:
    """Task type -> its train, dev and test variations."""
    return dict(_json("splits_1.2.3.json"))


def _json(name: str) -> Any:
    return json.loads((DATA / name).read_text(encoding="utf-8"))
