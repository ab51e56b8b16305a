"""Golden trajectories test an environment without a model: the same actions must meet the same text, scores and end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coevolve.chat.prompts import prompt_messages, write_action
from coevolve.envs.base import Env
from coevolve.envs.sciworld.env import IDENTITY, SciWorld
from coevolve.envs.sciworld.jvm import Simulator
from coevolve.envs.sciworld.tasks import task_of
from coevolve.errors import UserError
from coevolve.storage import jsonl
from coevolve.types import StopReason, Trajectory, Turn

MEMORY_MB = 256
READ_TIMEOUT_S = 60.0
#: Recorded scores have four decimals.
ROUNDING = 5.1e-5


@dataclass(frozen=True)
class Difference:
    """Where a replay left the record; `turn` counts from 0, -1 is the start."""

    task_id: str
    turn: int
    what: Literal["start", "observation", "score", "ending", "reward"]
    expected: str
    found: str


@dataclass(frozen=True)
class Summary:
    """How many episodes were replayed, with how many turns, and how many of them differ anywhere."""

    episodes: int
    turns: int
    different: int
    differences: tuple[Difference, ...]

    @property
    def first(self) -> Difference | None:
        """The first difference, if there is one."""
        return self.differences[0] if self.differences else None


def replay(env: Env, trajectory: Trajectory, tolerance: float = 0.0) -> list[Difference]:
    """All differences between `trajectory` and what its actions meet in `env`; scores may differ by `tolerance`."""
    found: list[Difference] = []

    def compare(turn: int, what: Literal["start", "observation", "ending"], expected: object, seen: object) -> None:
        if expected != seen:
            found.append(Difference(trajectory.task.task_id, turn, what, str(expected), str(seen)))

    def compare_number(turn: int, what: Literal["score", "reward"], expected: float, seen: float) -> None:
        if abs(expected - seen) > tolerance:
            found.append(Difference(trajectory.task.task_id, turn, what, str(expected), str(seen)))

    compare(-1, "start", trajectory.prompt[-1].content, env.start(trajectory.task))
    last = len(trajectory.turns) - 1
    for number, turn in enumerate(trajectory.turns):
        result = env.step(turn.action)
        compare(number, "observation", turn.observation, result.observation)
        compare_number(number, "score", turn.score, result.score)
        compare(number, "ending", number == last and trajectory.stop is StopReason.DONE, result.done)
        if number == last:
            compare_number(number, "reward", trajectory.reward, result.reward)
    return found


def replay_all(env: Env, trajectories: Iterable[Trajectory], tolerance: float = 0.0) -> Summary:
    """Replay `trajectories` one after another."""
    episodes = turns = different = 0
    differences: list[Difference] = []
    for trajectory in trajectories:
        found = replay(env, trajectory, tolerance)
        episodes += 1
        turns += len(trajectory.turns)
        different += bool(found)
        differences += found
    return Summary(episodes, turns, different, tuple(differences))


def replay_recorded_sciworld(path: Path, simplification: str = "easy", limit: int | None = None) -> Summary:
    """Replay a file of ScienceWorld episodes, or the first `limit` of it, in a simulator of its own.

    The file holds the kit's trajectories (`.jsonl`), or recorded gold paths (`.json`): a list of task, variation,
    instruction, first observation and `steps`, with `teleport_steps` as a second episode where there are any.
    """
    own = path.suffix == ".jsonl"
    trajectories = jsonl.read(path, Trajectory) if own else list(_recorded(path))
    if not trajectories:
        raise UserError(f"{path}: holds no episodes; give another file.")
    simulator = Simulator(MEMORY_MB, READ_TIMEOUT_S)
    try:
        return replay_all(SciWorld(simulator, simplification), trajectories[:limit], 0.0 if own else ROUNDING)
    finally:
        simulator.close()


def _recorded(path: Path) -> Iterator[Trajectory]:
    try:
        for item in json.loads(path.read_text(encoding="utf-8")):
            for steps in ("steps", "teleport_steps"):
                if steps in item:
                    yield _trajectory(item, [_turn(step) for step in item[steps]])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: no recorded gold paths ({type(error).__name__}: {error}); give another file."
        ) from None


def _trajectory(item: dict[str, Any], turns: list[Turn]) -> Trajectory:
    first = item["first_obs"] if "first_obs" in item else item["first_observation"]
    text = f"{item['instruction']}\n{first}"
    best = min(max(0.0, *(turn.score for turn in turns)), 1.0)
    return Trajectory(
        task=task_of(item["task"], item["variation"], item["split"]),
        agent="expert",
        protocol="fixed",
        environment=IDENTITY,
        prompt=prompt_messages(text),
        turns=tuple(turns),
        reward=best,
        raw_score=turns[-1].score,
        stop=StopReason.DONE,
    )


def _turn(step: Any) -> Turn:
    """A recorded step: `[action, observation, score, done]`, or a mapping with these keys."""
    action, observation, score = (
        [step[key] for key in ("action", "observation", "score")] if isinstance(step, dict) else step[:3]
    )
    return Turn(text=write_action(action), action=action, observation=observation, score=score)
