"""ScienceWorld's expert trajectories: the kit's own file (`gold`) or ETO's published one (`eto`).

An id in ETO's file is `<number>_<variation>`: upstream's code joins these ids with the names of its rollout files,
which it makes from the task type's number in `taskname2id.json`.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from coevolve.chat.prompts import parse_action
from coevolve.envs.experts import Experts, matched, read_eto
from coevolve.envs.sciworld import tasks as sciworld
from coevolve.envs.sciworld.config import ExpertSource
from coevolve.storage import files, jsonl
from coevolve.types import Task, Trajectory


def read(source: ExpertSource, tasks: Collection[Task], key: str) -> Experts:
    """The experts of `tasks` in the file `source` names; `key` is where the suite configures it.

    Raises `UserError` for a file that is absent, changed or malformed.
    """
    path = files.verified(Path(source.path), source.sha256, key)
    found = jsonl.read(path, Trajectory) if source.format == "gold" else read_eto(path, task_of_id, parse_action)
    return matched(found, tasks, source.min_reward)


def task_of_id(identity: str) -> Task | None:
    """The training task an id in ETO's file stands for, None if it stands for none."""
    number, _, variation = identity.partition("_")
    kind = sciworld.kind_of_number(number)
    return None if kind is None or not variation.isdecimal() else sciworld.task_of(kind, int(variation), "train")
