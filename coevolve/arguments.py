"""Values of the command line's options."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """The value of an option that takes a whole number from 1 on, as argparse's `type`."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is not a whole number from 1 on")
    return int(text)


def natural(text: str) -> int:
    """The value of an option that takes a whole number from 0 on, as argparse's `type`."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"`{text}` is not a whole number from 0 on")
    return int(text)
