"""How WebShop's observations are read."""

from coevolve.records.episodes import Turn


def is_refused(before: str, turn: Turn) -> bool:
    """Whether the page stayed as it was `before` and the clicked text, if any, does not stand on it."""
    clicked = (turn.action or "").partition("[")[2].rstrip("]").strip().lower()
    return turn.observation == before and (not clicked or clicked not in before.lower())
