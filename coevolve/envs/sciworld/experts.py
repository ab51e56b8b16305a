"""ScienceWorld's expert trajectories: the kit's own file (`gold`) or ETO's published one (`eto`).

An id in ETO's file is `<number>_<variation>`; upstream's `taskname2id.json` has the number of each task type.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from coevolve.chat.prompts import parse_action
from coevolve.envs.experts import Experts, match_experts, read_eto
from coevolve.envs.sciworld import tasks as sciworld
from coevolve.envs.sciworld.config import ExpertSource
from coevolve.storage import files, jsonl
from coevolve.types import Task, Trajectory


def read(source: ExpertSource, tasks: Collection[Task], key: str) -> Experts:
    """The experts of `tasks` in the file `source` names; `key` is the section's dotted key in the suite.

    Raises `UserError` for a file that is absent, changed or malformed.
    """
    path = files.verified(Path(source.path), source.sha256, key)
    candidates = jsonl.read(path, Trajectory) if source.format == "gold" else read_eto(path, task_of_id, parse_action)
    return match_experts(candidates, tasks, source.min_reward)


def task_of_id(identity: str) -> Task | None:
    """The training task of an id in ETO's file; None for an unknown id."""
    number, _, variation = identity.partition("_")
    kind = sciworld.kind_of_number(number)
    return None if kind is None or not variation.isdecimal() else sciworld.task_of(kind, int(variation), "train")
