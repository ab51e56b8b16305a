"""The questions of a suite: template questions over the databases, Spider's development items, or IPR's lists."""

import dataclasses
import functools
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, BaseModel, Field, ValidationError

from coevolve import shipped
from coevolve.envs import task_split
from coevolve.envs.intercode_sql import question_templates
from coevolve.envs.intercode_sql.config import InterCodeSqlConfig
from coevolve.envs.task_split import TaskSplit
from coevolve.errors import UserError
from coevolve.records.episodes import Task
from coevolve.records.pairs import Drop, DropReason
from coevolve.settings.section import SourceFile
from coevolve.storage import files, jsonl

DATA = shipped.DATA / "intercode_sql"
DEV_ITEMS = 1034
#: Number of development items whose gold query runs, which is also the number of items in IPR's test file.
USABLE = 1015
#: Source name in a task id, by the key of the file under `items`.
SOURCE_NAMES = {"dev": "dev", "train": "ipr", "test": "ipr_test"}
#: Most evaluation questions when the development items are split by database.
MAX_DEV_EVALUATED = 200


class SqlItem(BaseModel, frozen=True):
    """A question over a database and its gold query: a task's `data`, or an item of InterCode's files."""

    database: str = Field(validation_alias=AliasChoices("db", "database"))
    gold: str
    question: str = Field(validation_alias=AliasChoices("query", "question"))
    hardness: str = ""


def item_of(task: Task) -> SqlItem:
    """The item in `task.data`; raises `UserError` if a key is missing or not a text."""
    try:
        return SqlItem.model_validate(task.data)
    except ValidationError:
        needed = "`data` must hold `database`, `gold` and `question`, all text"
        raise UserError(f"task `{task.task_id}`: {needed}.") from None


def select(config: InterCodeSqlConfig, overlap: Literal["keep", "remove"]) -> TaskSplit:
    """The tasks of a suite; raises `UserError` for an unexpected file and for an empty list."""
    usable, drops = questions(config)
    train, test = ([task for task in usable if task.split == split] for split in ("train", "test"))
    kinds = dict.fromkeys(task.kind for task in usable)
    chosen = task_split.select(config.tasks, train, {"test": test}, config.splits, overlap, kinds)
    return dataclasses.replace(chosen, drops=(*drops, *chosen.drops))


def questions(config: InterCodeSqlConfig) -> tuple[tuple[Task, ...], tuple[Drop, ...]]:
    """Every usable question of the configured source, training first; development items whose gold query fails."""
    source = config.items
    if source.source == "templates":
        dump = files.verified(Path(config.dump.path), config.dump.sha256, "dump")
        return _training_first(question_templates.template_tasks(dump, source.per_kind or 0, source.databases)), ()
    if source.source == "ipr":
        numbers = indices("ipr/train_indices.json")
        test = _read(source.test, "test", range(USABLE, USABLE + 1), "the `ic_spider_test.json` of IPR's archive")
        train = _read(source.train, "train", range(max(numbers) + 1, sys.maxsize), "IPR's `ic_spider_train.json`")
        evaluated = (_as_test(test[number]) for number in indices("ipr/test_indices.json"))
        return (*(train[number] for number in numbers), *evaluated), ()
    dev = _read(source.dev, "dev", range(DEV_ITEMS, DEV_ITEMS + 1), "InterCode's `ic_spider_dev.json`")
    failing = [dev[number] for number in indices("gold_fails.json")]
    drops = tuple(Drop(task_id=task.task_id, reason=DropReason.GOLD_FAILS) for task in failing)
    return _training_first(_split_by_database([task for task in dev if task not in failing])), drops


@functools.cache
def indices(name: str) -> tuple[int, ...]:
    """An index list under `data/intercode_sql`."""
    return tuple(json.loads((DATA / name).read_text(encoding="utf-8")))


def _read(file: SourceFile | None, name: Literal["dev", "train", "test"], sizes: range, wanted: str) -> list[Task]:
    """All items of a file, as training tasks; raises `UserError` for another format, or a number not in `sizes`."""
    assert file is not None, f"the configuration was validated without the file `items.{name}`"
    items = jsonl.read_items(files.verified(Path(file.path), file.sha256, f"items.{name}"), SqlItem)
    if len(items) not in sizes:
        raise UserError(f"key `items.{name}`: {len(items)} items are too few or too many; give {wanted}.")
    return [
        Task(
            env="intercode_sql",
            task_id=f"intercode_sql/{SOURCE_NAMES[name]}/{number}",
            split="train",
            kind=item.hardness,
            data=item.model_dump(exclude={"hardness"}),
        )
        for number, item in enumerate(items)
    ]


def _split_by_database(tasks: Sequence[Task]) -> list[Task]:
    """The tasks, with `split` set: databases by name are for evaluation as long as these have at most 200 questions."""
    sizes = Counter(str(task.data["database"]) for task in tasks)
    evaluated: list[str] = []
    for database in sorted(sizes):
        if sizes[database] + sum(sizes[other] for other in evaluated) <= MAX_DEV_EVALUATED:
            evaluated.append(database)
    return [_as_test(task) if task.data["database"] in evaluated else task for task in tasks]


def _training_first(tasks: Iterable[Task]) -> tuple[Task, ...]:
    return tuple(sorted(tasks, key=lambda task: task.split != "train"))


def _as_test(task: Task) -> Task:
    return task.model_copy(update={"split": "test"})
