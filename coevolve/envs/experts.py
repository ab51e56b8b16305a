"""Expert trajectories: which of those found are used, and the reading of ETO's published format.

A file in that format is a list of `{"id", "conversations": [{"from": "human" | "gpt", "value"}, ...], "reward"?}`: an
instruction, its `OK`, the task, then actions and observations in turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from coevolve.chat.prompts import prompt_messages
from coevolve.envs.base import Env, StepResult
from coevolve.errors import UserError
from coevolve.storage import jsonl
from coevolve.types import Drop, DropReason, Message, Protocol, StopReason, Task, Trajectory, Turn

OBSERVATION = "Observation: "
#: A script: told how an episode begins, it says a text a turn and is sent what each met.
Guide = Callable[[str], Generator[str, Any, None]]


@dataclass(frozen=True)
class Experts:
    """One trajectory per task at most, in the tasks' order, and why others were not used."""

    trajectories: tuple[Trajectory, ...]
    drops: tuple[Drop, ...]


def matched(found: Iterable[Trajectory], tasks: Collection[Task], min_reward: float) -> Experts:
    """The first trajectory of each task in `tasks` that has turns and at least `min_reward`."""
    wanted = {task.task_id: task for task in tasks}
    kept: dict[str, Trajectory] = {}
    drops: list[Drop] = []
    for trajectory in found:
        task_id = trajectory.task.task_id
        if reason := _unused(trajectory, wanted, kept, min_reward):
            drops.append(Drop(task_id=task_id, reason=reason, ids=(trajectory.digest(),)))
        else:
            kept[task_id] = trajectory.model_copy(update={"task": wanted[task_id]})
    drops += [Drop(task_id=task_id, reason=DropReason.MISSING_EXPERT) for task_id in wanted if task_id not in kept]
    return Experts(tuple(kept[task_id] for task_id in wanted if task_id in kept), tuple(drops))


def played(env: Env, task: Task, guide: Guide, instruction: str, protocol: Protocol) -> Trajectory:
    """The episode of a scripted expert; one that is not done when the steps or the script end keeps what it earned.

    `guide` is told what the episode begins with, says one text a turn and is sent the observation that it met.
    """
    start = env.start(task)
    says, turns, result = guide(start), list[Turn](), StepResult(start, reward=0.0, score=0.0, done=False)
    with contextlib.suppress(StopIteration):
        text = next(says)
        while len(turns) < env.step_limit(task):
            action = env.parse(text)
            result = env.step(action)
            turns.append(Turn(text=text, action=action, observation=result.observation, score=result.score))
            text = says.send(result.observation)
    return Trajectory(
        task=task,
        agent="expert",
        protocol=protocol,
        environment=env.identity,
        prompt=prompt_messages(start, instruction=instruction),
        turns=tuple(turns),
        reward=result.reward,
        raw_score=result.score,
        stop=StopReason.DONE if result.done else StopReason.STEP_LIMIT,
    )


def read_eto(path: Path, task_of: Callable[[str], Task | None], parse: Callable[[str], str | None]) -> list[Trajectory]:
    """All trajectories of a file in ETO's format.

    `task_of` gives the task an id stands for, None if it stands for none; `parse` the action in a turn's text. Raises
    `UserError` naming the file and the item.
    """
    found = []
    for index, item in enumerate(jsonl.read_items(path, _Item)):
        task = task_of(str(item.id))
        if task is None:
            raise UserError(f"{path}: item {index}: id `{item.id}` stands for no task; fetch the file again.")
        found.append(_trajectory(item, task, parse, f"{path}: item {index}"))
    return found


class _Said(BaseModel):
    speaker: Literal["human", "gpt"] = Field(alias="from")
    value: str


class _Item(BaseModel):
    id: str | int
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


def _trajectory(item: _Item, task: Task, parse: Callable[[str], str | None], where: str) -> Trajectory:
    said = item.conversations
    if len(said) < 3 or any(one.speaker != speaker for one, speaker in zip(said, _speakers(), strict=False)):
        raise UserError(
            f"{where}: `conversations` must alternate human and gpt from instruction, OK, task; fetch it again."
        )
    return Trajectory(
        task=task,
        agent="expert",
        protocol="paper",
        prompt=tuple(_message(one) for one in said[:3]),
        turns=tuple(_turns(said[3:], parse)),
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


def _turns(said: list[_Said], parse: Callable[[str], str | None]) -> Iterable[Turn]:
    """Actions with the observations after them, without the word ETO puts before each; the last may have none."""
    observations = [one.value.removeprefix(OBSERVATION) for one in said[1::2]]
    for action, observation in zip(said[::2], [*observations, ""], strict=False):
        yield Turn(text=action.value, action=parse(action.value), observation=observation)
