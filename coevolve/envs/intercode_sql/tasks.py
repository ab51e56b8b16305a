"""Which questions a suite asks: made from the databases, Spider's development items, or IPR's lists."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from coevolve.config.sections import SourceFile
from coevolve.envs import task_split
from coevolve.envs.base import Selection
from coevolve.envs.intercode_sql import templates
from coevolve.envs.intercode_sql.config import InterCodeSqlConfig
from coevolve.errors import UserError
from coevolve.storage import files, jsonl
from coevolve.types import Drop, DropReason, Task

DATA = Path(__file__).resolve().parents[3] / "data" / "intercode_sql"
DEV_ITEMS = 1034
#: How many of them have a gold statement that runs, and how many items IPR's test file has.
USABLE = 1015
#: What stands in a task's id, by the file it comes from.
SOURCES = {"dev": "dev", "train": "ipr", "test": "ipr_test"}
#: The most questions that are for evaluation where the development items are divided by database.
DEV_EVALUATED = 200


@dataclass(frozen=True)
class Lists:
    """The questions of a source, in its order: for training, for evaluation, and those that cannot be used."""

    train: tuple[Task, ...]
    test: tuple[Task, ...]
    drops: tuple[Drop, ...] = ()


def select(config: InterCodeSqlConfig, overlap: Literal["keep", "remove"]) -> Selection:
    """The tasks a suite uses; raises `UserError` for a file that is not what it should be, and for an empty list."""
    lists = listed(config)
    kinds = dict.fromkeys(task.kind for task in (*lists.train, *lists.test))
    chosen = task_split.select(config.tasks, lists.train, {"test": lists.test}, config.splits, overlap, kinds)
    return dataclasses.replace(chosen, drops=(*lists.drops, *chosen.drops))


def items(config: InterCodeSqlConfig) -> tuple[Task, ...]:
    """Every usable question of the configured source, training first."""
    lists = listed(config)
    return (*lists.train, *lists.test)


def listed(config: InterCodeSqlConfig) -> Lists:
    """The questions of the configured source; the development items whose gold fails are dropped."""
    source = config.items
    if source.source == "templates":
        dump = files.verified(Path(config.dump.path), config.dump.sha256, "dump")
        return _divided(templates.tasks(dump, source.per_kind or 0, source.databases))
    if source.source == "ipr":
        test = _of_size(_read(source.test, "test"), USABLE, "test", "the `ic_spider_test.json` of IPR's archive")
        chosen = tuple(_for_evaluation(test[index]) for index in indices("ipr/test_indices.json"))
        return Lists(_training(_read(source.train, "train")), chosen)
    dev = _of_size(_read(source.dev, "dev"), DEV_ITEMS, "dev", "InterCode's `ic_spider_dev.json`")
    failing = [dev[index] for index in indices("gold_fails.json")]
    drops = tuple(Drop(task_id=task.task_id, reason=DropReason.GOLD_FAILS) for task in failing)
    lists = _divided(_by_database([task for task in dev if task not in failing]))
    return dataclasses.replace(lists, drops=drops)


@functools.cache
def indices(name: str) -> tuple[int, ...]:
    """One of the index lists under `data/intercode_sql`."""
    return tuple(json.loads((DATA / name).read_text(encoding="utf-8")))


class _Item(BaseModel):
    db: str
    gold: str
    query: str
    hardness: str = ""


def _read(file: SourceFile | None, name: Literal["dev", "train", "test"]) -> list[Task]:
    """All items of a file in InterCode's format, as training tasks; raises `UserError` naming the file and the key."""
    assert file is not None, f"no configuration lacks a file that its source needs: {name}"
    path = files.verified(Path(file.path), file.sha256, f"items.{name}")
    return [_task(SOURCES[name], number, item) for number, item in enumerate(jsonl.read_items(path, _Item))]


def _of_size(found: list[Task], size: int, name: str, wanted: str) -> list[Task]:
    if len(found) != size:
        raise UserError(f"key `items.{name}`: {len(found)} items, not {size}; give {wanted}.")
    return found


def _task(source: str, number: int, item: _Item) -> Task:
    return Task(
        env="intercode_sql",
        task_id=f"intercode_sql/{source}/{number}",
        split="train",
        kind=item.hardness,
        data={"database": item.db, "gold": item.gold, "question": item.query},
    )


def _training(found: list[Task]) -> tuple[Task, ...]:
    """The items that IPR trains on, in its order."""
    numbers = indices("ipr/train_indices.json")
    if len(found) <= max(numbers):
        wanted = f"IPR's list reaches item {max(numbers)}; give the `ic_spider_train.json` of IPR's archive"
        raise UserError(f"key `items.train`: {len(found)} items, but {wanted}.")
    return tuple(found[index] for index in numbers)


def _by_database(tasks: Sequence[Task]) -> list[Task]:
    """The tasks, those for evaluation marked: databases by name, each that still fits into 200 questions."""
    sizes = Counter(str(task.data["database"]) for task in tasks)
    evaluated: list[str] = []
    for database in sorted(sizes):
        if sizes[database] + sum(sizes[other] for other in evaluated) <= DEV_EVALUATED:
            evaluated.append(database)
    return [_for_evaluation(task) if task.data["database"] in evaluated else task for task in tasks]


def _divided(tasks: Iterable[Task]) -> Lists:
    parts: dict[str, list[Task]] = {"train": [], "test": []}
    for task in tasks:
        parts[task.split].append(task)
    return Lists(tuple(parts["train"]), tuple(parts["test"]))


def _for_evaluation(task: Task) -> Task:
    return task.model_copy(update={"split": "test"})
