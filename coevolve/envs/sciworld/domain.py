"""ScienceWorld's implementation of `coevolve.envs.registry.Domain`.

Expert trajectories are the kit's own (`gold`) or ETO's published ones (`eto`).
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from coevolve.chat.prompts import parse_action
from coevolve.envs.base import Setup
from coevolve.envs.experts import Experts, match_experts, read_eto
from coevolve.envs.sciworld import tasks
from coevolve.envs.sciworld.config import ExpertSource, SciWorldConfig
from coevolve.envs.sciworld.env import SciWorld
from coevolve.envs.sciworld.jvm import Simulator
from coevolve.envs.task_split import TaskSplit
from coevolve.records.episodes import Task, Trajectory
from coevolve.storage import files, jsonl

#: Sixteen worlds need 50 MB of heap together, and answer within 0.1 s when all of them act at once.
ENVS_PER_JVM = 16


def select(setup: Setup) -> TaskSplit:
    """The tasks of a suite."""
    return tasks.select(setup.config.tasks, setup.config.splits, setup.quirks.overlap)


def experts(setup: Setup, wanted: Sequence[Task]) -> Experts:
    """The experts in the configured file; raises `UserError` for a file that is absent, changed or malformed."""
    source: ExpertSource = setup.config.experts
    path = files.verified(Path(source.path), source.sha256, f"{setup.key}.experts")
    candidates = jsonl.read(path, Trajectory) if source.format == "gold" else read_eto(path, task_of_id, parse_action)
    return match_experts(candidates, wanted, source.min_reward)


@contextlib.contextmanager
def pool(setup: Setup, n: int) -> Iterator[list[SciWorld]]:
    """`n` environments to be used from up to `n` threads, in as few JVMs as hold them; the JVMs end with the block.

    A JVM starts with the first episode in it and runs one call at a time.
    """
    config: SciWorldConfig = setup.config
    with contextlib.ExitStack() as stack:
        simulators = [Simulator(config.memory_mb, config.read_timeout) for _ in range(math.ceil(n / ENVS_PER_JVM))]
        for simulator in simulators:
            stack.callback(simulator.close)
        yield [
            SciWorld(
                simulators[i // ENVS_PER_JVM],
                config.simplification,
                format_error_resets=setup.quirks.format_error_resets,
                step_limit=config.step_limit,
                action_label=setup.quirks.action_label,
            )
            for i in range(n)
        ]


def task_of_id(identity: str) -> Task | None:
    """The training task of an id in ETO's file, `<number of the type>_<variation>`; None for an unknown id."""
    number, _, variation = identity.partition("_")
    kind = tasks.kinds_by_number().get(number)
    return None if kind is None or not variation.isdecimal() else tasks.task_of(kind, int(variation), "train")
