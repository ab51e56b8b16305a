"""How BFCL's observations are read."""

from __future__ import annotations

from coevolve.types import Turn


def is_refused(before: str, turn: Turn) -> bool:
    """Whether the call was not executed, or its tool answered with an error."""
    return turn.observation.startswith(("Error", '{"error"'))
