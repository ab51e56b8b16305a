"""Progress of a long job: one live line on a terminal, or a line at intervals in the log."""

import datetime
import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

_log = logging.getLogger(__name__)


class Progress:
    """Reports progress to `stream` if that is a terminal, otherwise to the log.

    `clock` returns seconds; `every` is the shortest time in seconds between two lines of the log. The remaining time is
    estimated from the work since the first report, because a resumed job starts with work done before.
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
        self._first: tuple[float, int] | None = None
        self._last_time, self._last_done = -float("inf"), -1

    def report(self, done: int, total: int, **numbers: float) -> None:
        """Report `done` of `total` items, with further `numbers` to show."""
        now = self._clock()
        self._first = self._first or (now, done)
        if self._live:
            self._stream.write(f"\r\x1b[K{self._line(now, done, total, numbers)}" + "\n" * (done == total))
            self._stream.flush()
        elif done == total != self._last_done or now - self._last_time >= self._every:
            self._last_time, self._last_done = now, done
            _log.info("%s", self._line(now, done, total, numbers))

    def _line(self, now: float, done: int, total: int, numbers: dict[str, float]) -> str:
        parts = [f"{self._label} {done}/{total}", *(f"{name} {value:.3f}" for name, value in numbers.items())]
        start, done_before = self._first or (now, done)
        if done_before < done < total:
            seconds = round((now - start) / (done - done_before) * (total - done))
            parts.append(f"{datetime.timedelta(seconds=seconds)} left")
        return ", ".join(parts)
