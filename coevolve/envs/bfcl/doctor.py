"""Checks that the simulators of BFCL are installed and the gold calls succeed."""

from coevolve.assets.checks import Check, run_check
from coevolve.envs.bfcl.config import BfclConfig
from coevolve.envs.bfcl.replay import replay_gold
from coevolve.errors import UserError


def check(config: BfclConfig | None) -> Check:
    """Plays the gold calls of five scenarios."""
    return run_check("BFCL", _played)


def _played() -> str:
    episodes, _, differences = replay_gold("base", 5)
    if differences:
        raise UserError(f"{differences[0]}; run `make -B setup`.")
    return f"{episodes} gold conversations replayed, none differs"
