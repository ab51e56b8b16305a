"""Values of the command line's options."""

import argparse
import functools


def _whole_number(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"`{text}` is not a whole number from {least} on")
    return int(text)


#: argparse's `type` of an option that takes a whole number from 1 on, and from 0 on.
positive, natural = (functools.partial(_whole_number, least=least) for least in (1, 0))
