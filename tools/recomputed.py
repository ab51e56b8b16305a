"""Tables of results/reference/science.md that are computed from the committed evaluation records of a suite.

ETO's rows are `eto` and `eto_again`, the same method with other random numbers; their mean has half of the variance
between ETO's trainings.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

from coevolve import results
from coevolve.config.loading import load_suite
from coevolve.records.evaluation import EvalRecord
from coevolve.report import estimation
from coevolve.report.estimation import Matrix
from tools import front_page

#: Rows that are compared by iteration, and by type of task; the records of a row's methods are put together.
BOTH = ("eto", "eto_again")
BY_ITERATION = (
    (BOTH, ("sft",)),
    (("coevolve",), ("sft",)),
    (("coevolve",), ("eto",)),
    (("coevolve",), ("eto_again",)),
    (("coevolve",), BOTH),
    (("eto_eq9",), BOTH),
    (("coevolve",), ("eto_eq9",)),
    (("second_target",), BOTH),
    (("second_target",), ("eto_eq9",)),
    (("coevolve",), ("second_target",)),
)
BY_TYPE = (
    (("coevolve",), BOTH),
    (("coevolve",), ("eto_eq9",)),
    (("coevolve",), ("second_target",)),
    (("coevolve",), ("sft",)),
    (BOTH, ("sft",)),
    (("sft_all",), ("sft",)),
)
#: A failure with this reward is a hard negative.
HARD = 0.6

Row = tuple[str, ...]
Table = Iterator[list[str]]


@functools.cache
def _records(folder: str) -> dict[tuple[str, int], list[EvalRecord]]:
    """The evaluated episodes by method and iteration, as named tuples with the fields of a record."""
    episodes = results.episodes(front_page.REFERENCE / folder)
    return {key: [*rows.itertuples()] for key, rows in episodes.groupby(["method", "iteration"], sort=False)}


def _of(folder: str, row: Row, iteration: float = math.inf) -> list[EvalRecord]:
    """The records of a row's methods after one iteration, by default and at most the last one of each."""
    made = _records(folder)
    last = {method: max(number for name, number in made if name == method) for method in row}
    return [record for method in row for record in made[method, int(min(iteration, last[method]))]]


def by_iteration(folder: str) -> Table:
    """Differences of two rows by iteration, in points, with their intervals."""
    numbers = sorted(number for method, number in _records(folder) if method == "coevolve")
    yield ["difference", *(f"iteration {number}" for number in numbers)]
    for better, than in BY_ITERATION:
        differences = [_differences(_of(folder, better, number), _of(folder, than, number)) for number in numbers]
        yield [_name(folder, better, than), *(_points(folder, [each]) for each in differences)]


def by_type(folder: str) -> Table:
    """Differences of two rows on types of tasks in which some evaluated episode is a hard negative, and on the others.

    The last column is the first difference minus the second.
    """
    every = {(_type(record), HARD <= record.reward < 1.0) for group in _records(folder).values() for record in group}
    hard = {name for name, is_hard in every if is_hard}
    others = {name for name, _ in every} - hard
    yield ["difference", f"{len(hard)} types with hard negatives", f"{len(others)} types without", "first minus second"]
    for better, than in BY_TYPE:
        with_hard, without = (
            _differences(*([record for record in _of(folder, row) if _type(record) in types] for row in (better, than)))
            for types in (hard, others)
        )
        shown = [with_hard], [without], [with_hard, -without]
        yield [_name(folder, better, than), *(_points(folder, each) for each in shown)]


def _differences(better: Sequence[EvalRecord], than: Sequence[EvalRecord]) -> Matrix:
    """Differences by task and seed, whose several records are averaged; shape (tasks, seeds)."""
    sides = [estimation.points(records) for records in (better, than)]
    tasks = sorted({task for task, _, _ in sides[0]}, key=str)
    numbers = sorted({seed for _, seed, _ in sides[0]})
    first, second = (estimation.matrix(points, tasks, numbers) for points in sides)
    return first - second


def _points(folder: str, groups: Sequence[Matrix]) -> str:
    """The sum of the groups' means in points, with its interval over tasks and trainings."""
    committed = front_page.read(folder, "provenance.json")["config"]["report"]
    report = load_suite("science").report.model_copy(update=committed)
    return front_page.points(estimation.estimate(groups, 0, report.confidence).model_dump())


def _type(record: EvalRecord) -> str:
    """The type of a ScienceWorld task, such as `find-plant`."""
    return record.task_id.split("/")[1]


def _name(folder: str, better: Row, than: Row) -> str:
    labels = front_page.labels(folder)
    return " - ".join(labels.method(row[0]) + " (both rows)" * (len(row) > 1) for row in (better, than))
