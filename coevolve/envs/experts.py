"""Expert trajectories from files: the kit's own (`gold`) and ETO's published format (`eto`).

ETO's file is a list of `{"id", "conversations": [{"from": "human" | "gpt", "value"}, ...], "reward"?}`: an instruction,
its `OK`, the task, then actions and observations in turn. A ScienceWorld id is `<number>_<variation>`: upstream's code
joins these ids with the names of its rollout files, which it makes from the task type's number in `taskname2id.json`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from coevolve import store
from coevolve.config import ExpertSource
from coevolve.envs.sciworld import tasks as sciworld
from coevolve.errors import UserError
from coevolve.prompts import parse_action
from coevolve.types import Drop, DropReason, Message, StopReason, Task, Trajectory, Turn

OBSERVATION = "Observation: "


@dataclass(frozen=True)
class Experts:
    """One trajectory per task at most, in the tasks' order, and why others were not used."""

    trajectories: tuple[Trajectory, ...]
    drops: tuple[Drop, ...]


def read(source: ExpertSource, tasks: Collection[Task], key: str) -> Experts:
    """The experts of `tasks` in the file `source` names; `key` is where the suite configures it.

    Raises `UserError` for a file that is absent, changed or malformed.
    """
    path = store.verified(Path(source.path), source.sha256, key)
    found = store.read(path, Trajectory) if source.format == "gold" else read_eto(path)
    wanted = {task.task_id: task for task in tasks}
    kept: dict[str, Trajectory] = {}
    drops: list[Drop] = []
    for trajectory in found:
        task_id = trajectory.task.task_id
        if reason := _unused(trajectory, wanted, kept, source.min_reward):
            drops.append(Drop(task_id=task_id, reason=reason, ids=(trajectory.digest(),)))
        else:
            kept[task_id] = trajectory.model_copy(update={"task": wanted[task_id]})
    drops += [Drop(task_id=task_id, reason=DropReason.MISSING_EXPERT) for task_id in wanted if task_id not in kept]
    return Experts(tuple(kept[task_id] for task_id in wanted if task_id in kept), tuple(drops))


def read_eto(path: Path) -> list[Trajectory]:
    """All ScienceWorld trajectories of a file in ETO's format; raises `UserError` naming the file and the item."""
    try:
        items = TypeAdapter(list[_Item]).validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "(top level)"
        raise UserError(f"{path}: key `{where}`: {first['msg']}; fetch the file again.") from None
    return [_trajectory(item, f"{path}: item {index}") for index, item in enumerate(items)]


class _Said(BaseModel):
    speaker: Literal["human", "gpt"] = Field(alias="from")
    value: str


class _Item(BaseModel):
    id: str
    conversations: list[_Said]
    reward: float = Field(default=1.0, ge=0.0, le=1.0)


def _unused(
    trajectory: Trajectory, wanted: Collection[str], kept: Collection[str], min_reward: float
) -> DropReason | None:
    if trajectory.task.task_id not in wanted:
        return DropReason.NOT_IN_SPLIT
    if trajectory.task.task_id in kept:
        return DropReason.DUPLICATE
    if not trajectory.turns:
        return DropReason.EMPTY
    return DropReason.LOW_REWARD if trajectory.reward < min_reward else None


def _trajectory(item: _Item, where: str) -> Trajectory:
    said = item.conversations
    if len(said) < 3 or any(one.speaker != speaker for one, speaker in zip(said, _speakers(), strict=False)):
        raise UserError(
            f"{where}: `conversations` must alternate human and gpt from instruction, OK, task; fetch it again."
        )
    return Trajectory(
        task=_task(item.id, where),
        agent="expert",
        protocol="paper",
        prompt=tuple(_message(one) for one in said[:3]),
        turns=tuple(_turns(said[3:])),
        reward=item.reward,
        raw_score=item.reward,
        stop=StopReason.DONE,
    )


def _speakers() -> Iterator[str]:
    while True:
        yield "human"
        yield "gpt"


def _message(said: _Said) -> Message:
    return Message(role="user" if said.speaker == "human" else "assistant", content=said.value)


def _turns(said: list[_Said]) -> Iterable[Turn]:
    """Actions with the observations after them, without the word ETO puts before each; the last may have none."""
    observations = [one.value.removeprefix(OBSERVATION) for one in said[1::2]]
    for action, observation in zip(said[::2], [*observations, ""], strict=False):
        yield Turn(text=action.value, action=parse_action(action.value), observation=observation)


def _task(identity: str, where: str) -> Task:
    number, _, variation = identity.partition("_")
    kind = sciworld.kind_of_number(number)
    if kind is None or not variation.isdecimal():
        raise UserError(f"{where}: id `{identity}` is not `<number of a task type>_<variation>`; fetch the file again.")
    return sciworld.task_of(kind, int(variation), "train")
