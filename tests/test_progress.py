"""The progress report of a long job."""

import io
import logging

from coevolve.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_one_live_line():
    stream, seconds = Terminal(), iter([0.0, 10.0, 20.0])
    progress = Progress("episodes", stream=stream, clock=lambda: next(seconds))
    for done in (2, 4, 6):
        progress.report(done, 6, reward=0.5)
    first, second, third = stream.getvalue().split("\r\x1b[K")[1:]
    assert first == "episodes 2/6, reward 0.500"
    assert second == "episodes 4/6, reward 0.500, 0:00:10 left"
    assert third == "episodes 6/6, reward 0.500\n"


def test_a_log_gets_a_line_now_and_then(caplog):
    times = [0.0, 1.0, 2.0, 6.0, 7.0, 3700.0]
    seconds = iter(times)
    progress = Progress("pairs", stream=io.StringIO(), clock=lambda: next(seconds), every=5.0)
    with caplog.at_level(logging.INFO, logger="coevolve.progress"):
        for done in range(5):
            progress.report(done, 100)
        progress.report(100, 100)
    assert caplog.messages == ["pairs 0/100", "pairs 3/100, 0:03:14 left", "pairs 100/100"]
