"""BFCL's implementation of `coevolve.envs.registry.Domain`."""

import contextlib
from collections.abc import Iterator, Sequence

from coevolve.envs.base import Setup
from coevolve.envs.bfcl import generated, synthesis, tasks
from coevolve.envs.bfcl.env import Bfcl, instruction
from coevolve.envs.experts import Experts, fixed_script, match_experts, play_expert
from coevolve.envs.task_split import TaskSplit
from coevolve.records.episodes import Task


def select(setup: Setup) -> TaskSplit:
    """The tasks of a suite: BFCL's, or generated ones."""
    if setup.config.tasks.generated:
        return generated.select(setup)
    return tasks.select(setup.config.tasks, setup.config.splits, setup.quirks.overlap)


def experts(setup: Setup, wanted: Sequence[Task]) -> Experts:
    """The gold calls, played; a gold that earns less than 1 under the section's rules is dropped."""
    with pool(setup, 1) as (env,):
        text = instruction(setup.config)
        played = (
            play_expert(env, task, fixed_script(synthesis.solution_texts(setup, task)), text, setup.protocol)
            for task in wanted
        )
        return match_experts(played, wanted, 1.0)


@contextlib.contextmanager
def pool(setup: Setup, n: int) -> Iterator[Sequence[Bfcl]]:
    """Environments without shared state."""
    yield [Bfcl(setup.config, setup.quirks.action_label) for _ in range(n)]
