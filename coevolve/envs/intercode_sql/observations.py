"""How InterCodeSQL's observations are read."""

from coevolve.records.episodes import Turn


def is_refused(before: str, turn: Turn) -> bool:
    """Whether the server answered the turn's statement with an error."""
    return turn.observation.startswith("Error executing query")
