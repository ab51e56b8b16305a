"""The tasks of a suite out of an environment's lists: the first of each type, in the lists' order.

The split `development` is for choosing hyper-parameters: training tasks on which no policy is trained, the last of each
type.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from coevolve.envs.section import TaskSelection
from coevolve.errors import UserError
from coevolve.records.episodes import Task
from coevolve.records.pairs import Drop, DropReason

DEVELOPMENT = "development"


@dataclass(frozen=True)
class TaskSplit:
    """The tasks of a suite. `sft` and `explore` are disjoint unless the suite lets exploration repeat `sft`.

    `evaluate` holds all evaluation splits, each task naming its own. `overlap` names the training tasks that the
    source also uses for evaluation; `drops` those removed for it, and items that cannot be used.
    """

    sft: tuple[Task, ...]
    explore: tuple[Task, ...]
    evaluate: tuple[Task, ...]
    overlap: tuple[str, ...] = ()
    drops: tuple[Drop, ...] = ()

    @property
    def training(self) -> tuple[Task, ...]:
        """The tasks for fine-tuning or exploration, each once."""
        return tuple({task.task_id: task for task in (*self.sft, *self.explore)}.values())


def select(
    config: TaskSelection,
    train: Sequence[Task],
    evaluation: Mapping[str, Sequence[Task]],
    splits: Collection[str],
    overlap: Literal["keep", "remove"],
    kinds: Collection[str],
) -> TaskSplit:
    """The tasks that `config` selects from the training list and the evaluation lists in `splits`.

    Training tasks that are in *any* evaluation list of the source count as overlap, whether or not this suite evaluates
    them. Raises `UserError` for a type not in `kinds`, and naming the key that leaves a list empty.
    """
    if unknown := [kind for kind in config.kinds or () if kind not in kinds]:
        raise UserError(f"key `tasks.kinds`: unknown task type `{unknown[0]}`; known are {', '.join(kinds)}.")
    listed = _of_kinds(train, config.kinds)
    lists = {split: _of_kinds(tasks, config.kinds) for split, tasks in evaluation.items()}
    ids = {task.task_id for tasks in lists.values() for task in tasks}
    shared = tuple(task.task_id for task in listed if task.task_id in ids)
    removed = shared if overlap == "remove" else ()
    usable = [task for task in listed if task.task_id not in removed]
    sft = _first(usable, config.sft)
    explore = _first(usable if config.explore_sft else _without(usable, sft), config.explore)
    if DEVELOPMENT in splits:
        unused = _first(reversed(_without(usable, [*sft, *explore])), config.evaluate)
        lists[DEVELOPMENT] = [task.model_copy(update={"split": DEVELOPMENT}) for task in unused]
    selection = TaskSplit(
        sft=sft,
        explore=explore,
        evaluate=tuple(task for split in lists if split in splits for task in _first(lists[split], config.evaluate)),
        overlap=shared,
        drops=tuple(Drop(task_id=task_id, reason=DropReason.OVERLAP) for task_id in removed),
    )
    _refuse_empty(selection, splits)
    return selection


def _of_kinds(tasks: Iterable[Task], wanted: Sequence[str] | None) -> list[Task]:
    return [task for task in tasks if wanted is None or task.kind in wanted]


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


def _refuse_empty(selection: TaskSplit, splits: Collection[str]) -> None:
    lists: list[tuple[str, Sequence[Task]]] = [("tasks.sft", selection.sft), ("tasks.explore", selection.explore)]
    lists += [("splits", [task for task in selection.evaluate if task.split == split]) for split in splits]
    for key, tasks in lists:
        if not tasks:
            raise UserError(f"key `{key}`: no task is left for these `tasks.kinds` and limits; widen one of them.")
