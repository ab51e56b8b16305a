"""The ScienceWorld tasks of a suite: selected from ETO's lists or the official splits, in list or random order."""

import functools
import json
from collections.abc import Collection, Sequence
from typing import Any, Literal

from coevolve import seeds, shipped
from coevolve.envs import task_split
from coevolve.envs.sciworld.config import SciWorldSelection
from coevolve.envs.task_split import TaskSplit
from coevolve.records.episodes import Task

DATA = shipped.DATA / "sciworld"
#: What the simulator's own Python package allows; used for the six task types that ETO leaves out.
PACKAGE_STEP_LIMIT = 100

Split = Literal["train", "seen", "unseen"]
#: The name of each split in either source: ETO calls the development list "seen" and the test list "unseen".
SPLITS: dict[Split, str] = {"train": "train", "seen": "dev", "unseen": "test"}


def select(config: SciWorldSelection, splits: Collection[str], overlap: Literal["keep", "remove"]) -> TaskSplit:
    """The tasks that `config` selects from its lists; see `coevolve.envs.task_split.select`."""
    train = _ordered(config, "train")
    evaluation: dict[str, Sequence[Task]] = {split: _ordered(config, split) for split in SPLITS if split != "train"}
    return task_split.select(config, train, evaluation, splits, overlap, kinds())


def _ordered(config: SciWorldSelection, split: Split) -> Sequence[Task]:
    """All tasks of one split in the order that `config` takes them in."""
    tasks, seed = listed(config.lists, split), config.shuffle
    return tasks if seed is None else sorted(tasks, key=lambda task: seeds.derive(seed, task.task_id))


@functools.cache
def listed(source: Literal["eto", "official"], split: Split) -> tuple[Task, ...]:
    """All tasks of one split, in the source's order (official: by task type, then variation)."""
    if source == "eto":
        names = _json("eto/names.json")
        pairs = [(names[old], variation) for old, variation in _json(f"eto/{SPLITS[split]}.json")]
    else:
        column = list(SPLITS).index(split)
        pairs = [
            (kind, variation) for kind, columns in _json("splits_1.2.3.json").items() for variation in columns[column]
        ]
    return tuple(task_of(kind, variation, split) for kind, variation in pairs)


def task_of(kind: str, variation: int, split: str) -> Task:
    """The task of a simulator's task type and variation, such as `sciworld/find-animal/12`."""
    data = {"task": kind, "variation": variation}
    return Task(env="sciworld", task_id=f"sciworld/{kind}/{variation}", split=split, kind=kind, data=data)


def step_limit(kind: str) -> int:
    """ETO's step limit for a task type, else the package's."""
    names = _json("eto/names.json")
    limits: dict[str, int] = {names[old]: limit for old, limit in _json("eto/max_steps.json").items()}
    return limits.get(kind, PACKAGE_STEP_LIMIT)


def kinds_by_number() -> dict[str, str]:
    """The simulator's name of each task type by ETO's number of it."""
    names = _json("eto/names.json")
    return {str(number): names[old] for old, number in _json("eto/numbers.json").items()}


def kinds() -> tuple[str, ...]:
    """The simulator's thirty task types, in its order."""
    return tuple(_json("splits_1.2.3.json"))


@functools.cache
def _json(name: str) -> Any:
    """A file of the task lists; those of ETO have its own names of task types, which `eto/names.json` translates."""
    return json.loads((DATA / name).read_text(encoding="utf-8"))
