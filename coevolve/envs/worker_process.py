"""A program: holds environments for the process at the other end of a pipe, and ends when that process does.

`python -m coevolve.envs.worker_process DESCRIPTOR` reads how to open the environments and how many; then requests
(number, environment, name, arguments), with arguments None for an attribute; then None. For each request it writes its
number, the error that it met and its result.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any

from coevolve.envs.base import Env, EnvError
from coevolve.errors import UserError

#: Opens so many environments, which end with the block.
Pool = Callable[[int], AbstractContextManager[Sequence[Env]]]


class Host:
    """Answers requests about environments, once they are open, through the pipe `link`."""

    def __init__(self, link: Connection, envs: Future[Sequence[Env]]) -> None:
        self._link, self._envs, self._sending = link, envs, threading.Lock()

    def answer(self, number: int, env: int, name: str, arguments: Sequence[Any] | None) -> bytes:
        """The whole answer to a request, ready to be sent; raises what opening the environments raised."""
        found = getattr(self._envs.result()[env], name)
        return pickle.dumps((number, None, found if arguments is None else found(*arguments)))

    def send(self, number: int, answer: Future[bytes]) -> None:
        """Send an answer, or the error that stands in its place; to nobody, if nobody is left."""
        error = answer.exception()
        with self._sending, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._link.send_bytes(pickle.dumps((number, _told(error), None)) if error else answer.result())


def main(link: Connection) -> None:
    """Serve until told to end; where the other process ended without a word, end at once.

    All work is done in threads, so that the end is heard at any time. Programs behind the environments hear of it by
    pipes of their own.
    """
    opened, n = link.recv()
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(n + 1) as threads:
        host = Host(link, threads.submit(stack.enter_context, opened(n)))
        try:
            for number, *request in iter(link.recv, None):
                answer = threads.submit(host.answer, number, *request)
                answer.add_done_callback(functools.partial(host.send, number))
        except (EOFError, OSError):
            os._exit(1)


def _told(error: BaseException) -> Exception:
    """An error as it can be sent: those the kit knows as they are, any other with its traceback as text."""
    for kind in (EnvError, UserError):
        if isinstance(error, kind):
            return kind(str(error))
    return RuntimeError("".join(traceback.format_exception(error)))


if __name__ == "__main__":
    # A terminal sends its interrupt to everybody; the process that is served decides what follows.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    os.set_inheritable(descriptor := int(sys.argv[1]), False)
    main(Connection(descriptor))
