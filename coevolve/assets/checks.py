"""Results of checking a machine or a mirror, one line each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from coevolve.errors import UserError


@dataclass(frozen=True)
class Check:
    """The result of one check; `text` describes what is there, or what is wrong and how to correct it."""

    name: str
    status: Literal["ok", "missing", "wrong"]
    text: str

    def __str__(self) -> str:
        return f"{self.status:8}{self.name}: {self.text}"


def run_check(name: str, probe: Callable[[], str]) -> Check:
    """The text that `probe` returns as a passed check, or the `UserError` that it raises as a failed one."""
    try:
        return Check(name, "ok", probe())
    except UserError as error:
        return Check(name, "wrong", str(error))
