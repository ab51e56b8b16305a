"""Errors that a user can correct: one sentence, shown without a traceback."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input. The message is one sentence that names the file, the key and the fix."""


def brief(message: object) -> str:
    """What another program says of an error, on one line of at most 300 characters, as a part of a sentence."""
    return " ".join(str(message).split())[:300]


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: `; did you mean ...?`, or empty if no known name is close to it."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean `{near[0]}`?" if near else ""
