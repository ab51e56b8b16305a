"""Replays recorded ScienceWorld episodes in the simulator: `coevolve replay sciworld`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from coevolve.arguments import positive
from coevolve.chat.prompts import prompt_messages, write_action
from coevolve.envs.replay import ReplaySummary, replay_all
from coevolve.envs.sciworld.tasks import DATA, task_of
from coevolve.errors import UserError
from coevolve.records.episodes import StopReason, Trajectory, Turn
from coevolve.storage import jsonl

HELP = "Replay the kit's own trajectories, or other recorded episodes."
GOLD = DATA / "gold.jsonl"
MEMORY_MB = 256
READ_TIMEOUT_S = 60.0
#: Recorded scores have four decimals.
ROUNDING = 5.1e-5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `run`."""
    parser.add_argument(
        "file",
        type=Path,
        nargs="?",
        default=GOLD,
        metavar="FILE",
        help="recorded episodes (default: the kit's gold trajectories)",
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="replay the first N episodes only")


def run(options: argparse.Namespace, write: Callable[[str], None]) -> int:
    """Writes the first difference and the counts; returns 1 if an episode differs, else 0."""
    summary = replay_file(options.file, limit=options.limit)
    if first := summary.first:
        write(f"first difference: {first.task_id}, turn {first.turn}, {first.what}")
        write(f"recorded: {first.expected}\nreplayed: {first.actual}")
    write(f"{summary.episodes} episodes, {summary.turns} turns compared; {summary.different} episodes differ")
    return 1 if summary.different else 0


def replay_file(path: Path, limit: int | None = None) -> ReplaySummary:
    """Replays a file of episodes, or its first `limit`, in a new simulator.

    The file holds the kit's trajectories (`.jsonl`), or recorded gold paths (`.json`): a list of task, variation,
    instruction, first observation and `steps`; `teleport_steps` are a second episode. Raises `UserError` for a file
    without episodes.
    """
    from coevolve.envs.sciworld.env import SciWorld
    from coevolve.envs.sciworld.jvm import Simulator

    is_kit_format = path.suffix == ".jsonl"
    trajectories = jsonl.read(path, Trajectory) if is_kit_format else list(_recorded(path))
    if not trajectories:
        raise UserError(f"{path}: holds no episodes; give another file.")
    simulator = Simulator(MEMORY_MB, READ_TIMEOUT_S)
    try:
        env = SciWorld(simulator, "easy", format_error_resets=trajectories[0].protocol == "paper")
        return replay_all(env, trajectories[:limit], 0.0 if is_kit_format else ROUNDING)
    finally:
        simulator.close()


def _recorded(path: Path) -> Iterator[Trajectory]:
    try:
        for item in json.loads(path.read_text(encoding="utf-8")):
            for steps in ("steps", "teleport_steps"):
                if steps in item:
                    yield _trajectory(item, [_turn(step) for step in item[steps]])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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
