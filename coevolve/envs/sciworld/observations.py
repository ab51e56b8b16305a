"""How ScienceWorld's observations are read."""

from coevolve.records.episodes import Turn


def is_refused(before: str, turn: Turn) -> bool:
    """Whether the simulator did not understand the turn's action."""
    return turn.observation.startswith("No known action")
