"""The questions of a suite: template questions over the databases, Spider's development items, or IPR's lists."""

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

from coevolve import shipped
from coevolve.config.sections import SourceFile
from coevolve.envs import task_split
from coevolve.envs.intercode_sql import question_templates
from coevolve.envs.intercode_sql.config import InterCodeSqlConfig
from coevolve.envs.task_split import TaskSplit
from coevolve.errors import UserError
from coevolve.records.drops import Drop, DropReason
from coevolve.records.episodes import Task
from coevolve.storage import files, jsonl

DATA = shipped.DATA / "intercode_sql"
DEV_ITEMS = 1034
#: Number of development items whose gold query runs, which is also the number of items in IPR's test file.
USABLE = 1015
#: Source name in a task id, by the key of the file under `items`.
SOURCE_NAMES = {"dev": "dev", "train": "ipr", "test": "ipr_test"}
#: Most evaluation questions when the development items are split by database.
MAX_DEV_EVALUATED = 200


@dataclass(frozen=True)
class QuestionLists:
    """Training and evaluation questions of a source, in its order, and those dropped because their gold query fails."""

    train: tuple[Task, ...]
    test: tuple[Task, ...]
    drops: tuple[Drop, ...] = ()


def select(config: InterCodeSqlConfig, overlap: Literal["keep", "remove"]) -> TaskSplit:
    """The tasks of a suite; raises `UserError` for an unexpected file and for an empty list."""
    lists = question_lists(config)
    kinds = dict.fromkeys(task.kind for task in (*lists.train, *lists.test))
    chosen = task_split.select(config.tasks, lists.train, {"test": lists.test}, config.splits, overlap, kinds)
    return dataclasses.replace(chosen, drops=(*lists.drops, *chosen.drops))


def items(config: InterCodeSqlConfig) -> tuple[Task, ...]:
    """Every usable question of the configured source, training first."""
    lists = question_lists(config)
    return (*lists.train, *lists.test)


def question_lists(config: InterCodeSqlConfig) -> QuestionLists:
    """The questions of the configured source; development items whose gold query fails are dropped."""
    source = config.items
    if source.source == "templates":
        dump = files.verified(Path(config.dump.path), config.dump.sha256, "dump")
        return _by_split(question_templates.template_tasks(dump, source.per_kind or 0, source.databases))
    if source.source == "ipr":
        test = _require_size(_read(source.test, "test"), USABLE, "test", "the `ic_spider_test.json` of IPR's archive")
        evaluated = tuple(_as_test(test[index]) for index in indices("ipr/test_indices.json"))
        return QuestionLists(_ipr_training(_read(source.train, "train")), evaluated)
    dev = _require_size(_read(source.dev, "dev"), DEV_ITEMS, "dev", "InterCode's `ic_spider_dev.json`")
    failing = [dev[index] for index in indices("gold_fails.json")]
    drops = tuple(Drop(task_id=task.task_id, reason=DropReason.GOLD_FAILS) for task in failing)
    lists = _by_split(_split_by_database([task for task in dev if task not in failing]))
    return dataclasses.replace(lists, drops=drops)


@functools.cache
def indices(name: str) -> tuple[int, ...]:
    """An index list under `data/intercode_sql`."""
    return tuple(json.loads((DATA / name).read_text(encoding="utf-8")))


class InterCodeItem(BaseModel):
    """An item of a file in InterCode's format: database, gold query, question, and Spider's class of difficulty."""

    db: str
    gold: str
    query: str
    hardness: str = ""


def _read(file: SourceFile | None, name: Literal["dev", "train", "test"]) -> list[Task]:
    """All items of a file in InterCode's format, as training tasks; raises `UserError` naming the file and the key."""
    assert file is not None, f"the configuration was validated without the file `items.{name}`"
    path = files.verified(Path(file.path), file.sha256, f"items.{name}")
    return [
        _task(SOURCE_NAMES[name], number, item) for number, item in enumerate(jsonl.read_items(path, InterCodeItem))
    ]


def _require_size(tasks: list[Task], size: int, name: str, wanted: str) -> list[Task]:
    if len(tasks) != size:
        raise UserError(f"key `items.{name}`: {len(tasks)} items, not {size}; give {wanted}.")
    return tasks


def _task(source: str, number: int, item: InterCodeItem) -> Task:
    return Task(
        env="intercode_sql",
        task_id=f"intercode_sql/{source}/{number}",
        split="train",
        kind=item.hardness,
        data={"database": item.db, "gold": item.gold, "question": item.query},
    )


def _ipr_training(tasks: list[Task]) -> tuple[Task, ...]:
    """The tasks that IPR trains on, in its order."""
    numbers = indices("ipr/train_indices.json")
    if len(tasks) <= max(numbers):
        wanted = f"IPR's list reaches item {max(numbers)}; give the `ic_spider_train.json` of IPR's archive"
        raise UserError(f"key `items.train`: {len(tasks)} items, but {wanted}.")
    return tuple(tasks[index] for index in numbers)


def _split_by_database(tasks: Sequence[Task]) -> list[Task]:
    """The tasks, with `split` set: databases by name are for evaluation as long as these have at most 200 questions."""
    sizes = Counter(str(task.data["database"]) for task in tasks)
    evaluated: list[str] = []
    for database in sorted(sizes):
        if sizes[database] + sum(sizes[other] for other in evaluated) <= MAX_DEV_EVALUATED:
            evaluated.append(database)
    return [_as_test(task) if task.data["database"] in evaluated else task for task in tasks]


def _by_split(tasks: Iterable[Task]) -> QuestionLists:
    parts: dict[str, list[Task]] = {"train": [], "test": []}
    for task in tasks:
        parts[task.split].append(task)
    return QuestionLists(tuple(parts["train"]), tuple(parts["test"]))


def _as_test(task: Task) -> Task:
    return task.model_copy(update={"split": "test"})
