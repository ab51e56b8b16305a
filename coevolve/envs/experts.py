"""Expert trajectories: the choice of one per task, scripted experts, and ETO's published format.

A file in that format is a list of `{"id", "conversations": [{"from": "human" | "gpt", "value"}, ...], "reward"?}`: an
instruction, the reply `OK`, the task, then actions and observations alternately.
"""

import contextlib
import itertools
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, field_validator

from coevolve.chat.prompts import prompt_messages
from coevolve.envs.base import Env, StepResult
from coevolve.envs.checked import CheckedEnv
from coevolve.errors import UserError
from coevolve.records.episodes import Message, StopReason, Task, Trajectory, Turn
from coevolve.records.pairs import Drop, DropReason
from coevolve.settings.protocol import Protocol
from coevolve.storage import jsonl

OBSERVATION = "Observation: "
#: A generator function: gets the start text, yields the text of each turn, and is sent the observation after it.
ScriptedExpert = Callable[[str], Generator[str, Any, None]]


@dataclass(frozen=True)
class Experts:
    """At most one trajectory per task, in the tasks' order, and a drop for each unused one."""

    trajectories: tuple[Trajectory, ...]
    drops: tuple[Drop, ...]


def match_experts(candidates: Iterable[Trajectory], tasks: Collection[Task], min_reward: float) -> Experts:
    """The first trajectory of each task in `tasks` that has turns and at least `min_reward`."""
    wanted = {task.task_id: task for task in tasks}
    kept: dict[str, Trajectory] = {}
    drops: list[Drop] = []
    for trajectory in candidates:
        task_id = trajectory.task.task_id
        if reason := _unused(trajectory, wanted, kept, min_reward):
            drops.append(Drop(task_id=task_id, reason=reason, ids=(trajectory.digest(),)))
        else:
            kept[task_id] = trajectory.model_copy(update={"task": wanted[task_id]})
    drops += [Drop(task_id=task_id, reason=DropReason.MISSING_EXPERT) for task_id in wanted if task_id not in kept]
    return Experts(tuple(kept[task_id] for task_id in wanted if task_id in kept), tuple(drops))


def fixed_script(texts: Sequence[str]) -> ScriptedExpert:
    """A scripted expert that ignores the observations."""
    return lambda _: (text for text in texts)


def play_expert(env: Env, task: Task, script: ScriptedExpert, instruction: str, protocol: Protocol) -> Trajectory:
    """The episode of a scripted expert; it ends with the task, the script or the step limit, whichever is first."""
    env = CheckedEnv(env)
    start = env.start(task)
    texts, turns, result = script(start), list[Turn](), StepResult(start, reward=0.0, score=0.0, done=False)
    with contextlib.suppress(StopIteration):
        text = next(texts)
        while len(turns) < env.step_limit(task):
            action = env.parse(text)
            result = env.step(action)
            turns.append(Turn(text=text, action=action, observation=result.observation, score=result.score))
            if result.done:
                break
            text = texts.send(result.observation)
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

    `task_of` maps an id to its task, None for an unknown id; `parse` extracts the action from a turn's text. Raises
    `UserError` naming the file and the item.
    """
    trajectories = []
    for index, item in enumerate(jsonl.read_items(path, _EtoItem)):
        task = task_of(str(item.id))
        if task is None:
            raise UserError(f"{path}: item {index}: id `{item.id}` stands for no task; fetch the file again.")
        trajectories.append(_trajectory(item, task, parse))
    return trajectories


class _EtoMessage(BaseModel):
    speaker: Literal["human", "gpt"] = Field(alias="from")
    value: str


class _EtoItem(BaseModel):
    id: str | int
    conversations: Annotated[list[_EtoMessage], Field(min_length=3)]
    reward: float = Field(default=1.0, ge=0.0, le=1.0)

    @field_validator("conversations")
    @classmethod
    def _alternate(cls, messages: list[_EtoMessage]) -> list[_EtoMessage]:
        if any(message.speaker != speaker for message, speaker in zip(messages, itertools.cycle(("human", "gpt")))):
            raise ValueError("human and gpt must alternate, from instruction, OK, task")
        return messages


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


def _trajectory(item: _EtoItem, task: Task, parse: Callable[[str], str | None]) -> Trajectory:
    messages = [
        Message(role="user" if message.speaker == "human" else "assistant", content=message.value)
        for message in item.conversations
    ]
    return Trajectory(
        task=task,
        agent="expert",
        protocol="paper",
        prompt=tuple(messages[:3]),
        turns=tuple(_turns(messages[3:], parse)),
        reward=item.reward,
        raw_score=item.reward,
        stop=StopReason.DONE,
    )


def _turns(messages: list[Message], parse: Callable[[str], str | None]) -> Iterable[Turn]:
    """Actions with the observations after them, without ETO's prefix; the last action may have no observation."""
    observations = [message.content.removeprefix(OBSERVATION) for message in messages[1::2]]
    for action, observation in zip(messages[::2], [*observations, ""], strict=False):
        yield Turn(text=action.content, action=parse(action.content), observation=observation)
