"""What looking at a machine or a mirror finds, a line each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from coevolve.errors import UserError


@dataclass(frozen=True)
class Check:
    """One thing looked at; `text` says what is there, or in one sentence what is not right and how to mend it."""

    what: str
    status: Literal["ok", "missing", "wrong"]
    text: str

    def __str__(self) -> str:
        return f"{self.status:8}{self.what}: {self.text}"


def checked(what: str, look: Callable[[], str]) -> Check:
    """`look`'s answer as a check; a `UserError` is what is wrong."""
    try:
        return Check(what, "ok", look())
    except UserError as error:
        return Check(what, "wrong", str(error))
