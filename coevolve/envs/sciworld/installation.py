"""Whether the ScienceWorld simulator runs here and answers as it was recorded: `coevolve replay sciworld`."""

import argparse
import contextlib
from collections.abc import Callable
from pathlib import Path

from coevolve.arguments import positive
from coevolve.assets.checks import Check, run_check
from coevolve.envs.base import EnvError
from coevolve.envs.replay import ReplaySummary, replay_all
from coevolve.envs.sciworld.config import SciWorldConfig
from coevolve.envs.sciworld.tasks import DATA
from coevolve.errors import UserError
from coevolve.records.episodes import Trajectory
from coevolve.storage import jsonl

HELP = "Replay the kit's own trajectories, or other recorded episodes."
GOLD = DATA / "gold.jsonl"
MEMORY_MB = 256
READ_TIMEOUT_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `run`."""
    about = "recorded episodes (default: the kit's gold trajectories)"
    parser.add_argument("file", type=Path, nargs="?", default=GOLD, metavar="FILE", help=about)
    parser.add_argument("--limit", type=positive, metavar="N", help="replay the first N episodes only")


def run(options: argparse.Namespace, write: Callable[[str], None]) -> int:
    """Writes the first difference and the counts; returns 1 if an episode differs, else 0."""
    summary = replay_file(options.file, limit=options.limit)
    for first in summary.differences[:1]:
        write(f"first difference: {first.task_id}, turn {first.turn}, {first.what}")
        write(f"recorded: {first.expected}\nreplayed: {first.actual}")
    write(f"{summary.episodes} episodes, {summary.turns} turns compared; {summary.different} episodes differ")
    return 1 if summary.different else 0


def replay_file(path: Path, limit: int | None = None) -> ReplaySummary:
    """Replays the first `limit` trajectories of a file (None: all); raises `UserError` for a file without any."""
    from coevolve.envs.sciworld.env import SciWorld
    from coevolve.envs.sciworld.jvm import Simulator

    trajectories = jsonl.read(path, Trajectory)
    if not trajectories:
        raise UserError(f"{path}: holds no episodes; give another file.")
    with contextlib.closing(Simulator(MEMORY_MB, READ_TIMEOUT_S)) as simulator:
        env = SciWorld(simulator, "easy", format_error_resets=trajectories[0].protocol == "paper")
        return replay_all(env, trajectories[:limit])


def check(config: SciWorldConfig | None) -> Check:
    """Replays two recorded episodes."""
    return run_check("ScienceWorld", _replayed)


def _replayed() -> str:
    try:
        summary = replay_file(GOLD, limit=2)
    except (ImportError, EnvError, OSError) as error:
        raise UserError(f"no episode can be played ({' '.join(str(error).split())}); run `make -B setup`.") from None
    if summary.different:
        raise UserError(f"{summary.different} of {summary.episodes} recorded episodes differ; run `make -B setup`.")
    return f"{summary.episodes} recorded episodes replayed, none differs"
