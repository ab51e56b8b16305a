"""How far a long job is: one live line on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

_log = logging.getLogger(__name__)


class Progress:
    """Tells `stream`, if it is a terminal, or else the log how much is done.

    `clock` counts seconds, `every` is the shortest time between two lines of the log. What is done at the first
    report took no time: a resumed job's estimate rests on what it did itself.
    """

    def __init__(
        self,
        label: str,
        *,
        stream: TextIO = sys.stderr,
        clock: Callable[[], float] = time.monotonic,
        every: float = 5.0,
    ) -> None:
        self._label, self._stream, self._clock, self._every = label, stream, clock, every
        self._live = stream.isatty()
        self._began: tuple[float, int] | None = None
        self._told, self._last = -float("inf"), -1

    def report(self, done: int, total: int, **numbers: float) -> None:
        """Tell that `done` of `total` are done, with some `numbers` to watch."""
        now = self._clock()
        self._began = self._began or (now, done)
        if self._live:
            self._stream.write(f"\r\x1b[K{self._line(now, done, total, numbers)}" + "\n" * (done == total))
            self._stream.flush()
        elif done == total != self._last or now - self._told >= self._every:
            self._told, self._last = now, done
            _log.info("%s", self._line(now, done, total, numbers))

    def _line(self, now: float, done: int, total: int, numbers: dict[str, float]) -> str:
        parts = [f"{self._label} {done}/{total}", *(f"{name} {value:.3f}" for name, value in numbers.items())]
        began, had = self._began or (now, done)
        if had < done < total:
            parts.append(f"{_duration((now - began) / (done - had) * (total - done))} left")
        return ", ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
