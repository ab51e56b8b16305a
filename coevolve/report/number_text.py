"""Numbers as readable text: three significant digits, no exponents from 1e-6 on, durations and sizes with a unit."""

import math
from collections.abc import Callable


def readable(value: float) -> str:
    """A number with three significant digits, thousands separated by commas: `0.083`, `12.5`, `24,400`."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    if abs(value) < 1e-6:
        return f"{value:.2e}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


def with_interval(value: float, low: float, high: float, number: Callable[[float], str] = "{:.1f}".format) -> str:
    """A number and the ends of its interval, each with one decimal or as `number` writes it: `52.3 [48.1, 56.0]`."""
    return f"{number(value)} [{number(low)}, {number(high)}]"


def size(gigabytes: float) -> str:
    """A size of files in the unit that fits: `95 kB`, `3.6 MB`, `1,200 GB`; 1 kB is 1,000 bytes."""
    for factor, unit in ((1e6, "kB"), (1e3, "MB")):
        if gigabytes * factor < 1000:
            return f"{readable(gigabytes * factor)} {unit}"
    return f"{readable(gigabytes)} GB"


def duration(hours: float) -> str:
    """Hours as text in the unit that fits: `12 s`, `3.4 min`, `120 h`."""
    for size, unit in ((1 / 60, "s"), (1.0, "min")):
        if hours < size:
            return f"{readable(hours * (3600 if unit == 's' else 60))} {unit}"
    return f"{readable(hours)} h"
