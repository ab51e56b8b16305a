"""Generated tasks: scripted exploration of scenarios, for policies too small for the conversations of BFCL."""

import itertools
from collections.abc import Collection, Iterator, Sequence

from coevolve import seeds
from coevolve.envs import task_split
from coevolve.envs.base import Setup
from coevolve.envs.bfcl import synthesis, tasks
from coevolve.envs.bfcl.config import BfclSelection, GeneratedTasks
from coevolve.envs.bfcl.env import Bfcl
from coevolve.envs.synthesis import execute_solution
from coevolve.envs.task_split import TaskSplit
from coevolve.errors import UserError
from coevolve.records.episodes import Task, Turn

#: Explorations for each wanted task, and calls tried for each wanted call, before generation gives up.
TRIES = 50


def select(setup: Setup) -> TaskSplit:
    """The generated tasks of the training and the test scenarios that the section selects.

    No evaluated task has the gold calls of a training task.
    """
    config: BfclSelection = setup.config.tasks
    assert config.generated is not None, "only a section with generated tasks comes here"
    parts = tasks.scenario_parts(config.split)
    train = _generate(setup, parts["train"], config.generated.train, "train")
    trained = {_solution(setup, task) for task in train}
    evaluation = {
        split: _generate(setup, parts[part], config.generated.evaluate, split, trained)
        for split, (part, category) in tasks.EVALUATED.items()
        if part in parts and category == "base"
    }
    return task_split.select(config, train, evaluation, setup.config.splits, setup.quirks.overlap, tasks.KINDS)


def _generate(
    setup: Setup, indices: Sequence[int], count: int, split: str, taken: Collection[tuple[str, ...]] = ()
) -> list[Task]:
    """`count` tasks with different solutions, none of them `taken`; raises `UserError` if so many cannot be made."""
    kinds = setup.config.tasks.kinds or tasks.KINDS
    starts = [start for index in indices if (start := tasks.task_of("base", index, split)).kind in kinds]
    made: dict[tuple[str, ...], Task] = {}
    for number, task in enumerate(_explored(setup, starts, split), start=1):
        if len(made) == count:
            break
        if number == TRIES * count:
            raise UserError(f"key `tasks.generated`: {len(made)} of {count} tasks could be made; lower the number.")
        if task is not None and (key := _solution(setup, task)) not in taken:
            made.setdefault(key, task)
    return list(made.values())


def _solution(setup: Setup, task: Task) -> tuple[str, ...]:
    return tuple(synthesis.normalised(setup, task, call) for call in synthesis.reference_solution(task))


def _explored(setup: Setup, starts: Sequence[Task], split: str) -> Iterator[Task | None]:
    """The tasks that exploration gives, one start after the other; None where its solution earns less than 1."""
    env = Bfcl(setup.config, setup.quirks.action_label)
    config: GeneratedTasks = setup.config.tasks.generated
    for number, start in enumerate(itertools.cycle(starts)):
        rng = seeds.generator(config.seed, "generated", split, number)
        actions = int(rng.integers(1, config.actions + 1))
        env.start(synthesis.open_task(start, f"{start.task_id}/open", ""))
        turns: list[Turn] = []
        while len(turns) < TRIES * actions and len(synthesis.executed(setup, turns)) < actions:
            call = synthesis.propose(setup, start, turns, (), rng)
            turns.append(Turn(text=call, action=call, observation=env.step(call).observation))
        draft = synthesis.describe(setup, start, synthesis.executed(setup, turns))
        task = synthesis.goal_task(setup, start, f"bfcl/{split}/{number + 1}", draft) if draft else None
        solved = task and execute_solution(env, task, synthesis.solution_texts(setup, task), setup).reward == 1.0
        yield task if solved else None
