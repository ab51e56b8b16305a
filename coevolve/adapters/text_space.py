"""Gymnasium's space of texts of any kind, for pages and actions."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces


class FreeText(spaces.Text):
    """Texts of at most `max_length` characters of any kind; samples consist of letters and digits."""

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0)

    def contains(self, x: Any) -> bool:
        """Whether `x` is a text of at most `max_length` characters."""
        return isinstance(x, str) and len(x) <= self.max_length
