"""Checks that the ScienceWorld simulator runs here and answers as it was recorded."""

from coevolve.assets.checks import Check, run_check
from coevolve.envs.base import EnvError
from coevolve.envs.sciworld import replay
from coevolve.envs.sciworld.config import SciWorldConfig
from coevolve.errors import UserError


def check(config: SciWorldConfig | None) -> Check:
    """Replays two recorded episodes."""
    return run_check("ScienceWorld", _replayed)


def _replayed() -> str:
    try:
        summary = replay.replay_file(replay.GOLD, limit=2)
    except (ImportError, EnvError, OSError) as error:
        raise UserError(f"no episode can be played ({' '.join(str(error).split())}); run `make -B setup`.") from None
    if summary.different:
        raise UserError(f"{summary.different} of {summary.episodes} recorded episodes differ; run `make -B setup`.")
    return f"{summary.episodes} recorded episodes replayed, none differs"
