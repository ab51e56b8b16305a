"""Gold paths of ScienceWorld that others recorded, as trajectories.

A file is a list of task, variation, instruction, first observation and `steps`; `teleport_steps` are a second episode.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coevolve.chat.prompts import prompt_messages, write_action
from coevolve.envs.sciworld.tasks import task_of
from coevolve.records.episodes import StopReason, Trajectory, Turn

#: Recorded scores have four decimals.
ROUNDING = 5.1e-5


def recorded_paths(path: Path) -> Iterator[Trajectory]:
    """The episodes of a file."""
    for item in json.loads(path.read_text(encoding="utf-8")):
        for steps in ("steps", "teleport_steps"):
            if steps in item:
                yield _trajectory(item, [_turn(step) for step in item[steps]])


def _trajectory(item: dict[str, Any], turns: list[Turn]) -> Trajectory:
    first = item["first_obs"] if "first_obs" in item else item["first_observation"]
    text = f"{item['instruction']}\n{first}"
    best = min(max(0.0, *(turn.score for turn in turns)), 1.0)
    return Trajectory(
        task=task_of(item["task"], item["variation"], item["split"]),
        agent="expert",
        protocol="fixed",
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
