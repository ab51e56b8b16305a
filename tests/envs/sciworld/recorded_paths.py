"""Gold paths of ScienceWorld that others recorded, as trajectories."""

import json

from coevolve.chat.prompts import prompt_messages, write_action
from coevolve.envs.sciworld.tasks import task_of
from coevolve.records.episodes import StopReason, Trajectory, Turn

#: Recorded scores have four decimals.
ROUNDING = 5.1e-5


def recorded_paths(path):
    """The episodes of a file: two of each item, door by door and with teleports."""
    for item in json.loads(path.read_text(encoding="utf-8")):
        for steps in ("steps", "teleport_steps"):
            yield _trajectory(item, [_turn(**step) for step in item[steps]])


def _trajectory(item, turns):
    return Trajectory(
        task=task_of(item["task"], item["variation"], item["split"]),
        agent="expert",
        protocol="fixed",
        prompt=prompt_messages(f"{item['instruction']}\n{item['first_observation']}"),
        turns=tuple(turns),
        reward=min(max(0.0, *(turn.score for turn in turns)), 1.0),
        raw_score=turns[-1].score,
        stop=StopReason.DONE,
    )


def _turn(action, observation, score, done):
    return Turn(text=write_action(action), action=action, observation=observation, score=score)
