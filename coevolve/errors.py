"""Errors that a user can correct: one sentence, shown without a traceback."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input. The message is one sentence that names the file, the key and the fix."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: `; did you mean ...?`, or empty if no known name is close to it."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean `{near[0]}`?" if near else ""


def positive(text: str) -> int:
    """The value of a command-line argument that counts something, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is not a whole number from 1 on")
    return int(text)
