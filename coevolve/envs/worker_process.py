"""The program of a worker process: runs environments for the process at the other end of a pipe.

`python -m coevolve.envs.worker_process DESCRIPTOR` reads the function that opens the environments and their number;
then requests (number, environment, name, arguments), with arguments None for an attribute; then None. For each request
it writes the request's number, its error or None, and its result. If the environments fail to open with an `EnvError`,
it writes this error with the number None and ends. It also ends when the other process ends.
"""

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

from coevolve import escaping
from coevolve.envs.base import Env, EnvError
from coevolve.errors import UserError

#: Opens the given number of environments; they end with the block.
Pool = Callable[[int], AbstractContextManager[Sequence[Env]]]


class RequestHandler:
    """Answers requests about environments, once they are open, through the pipe `link`."""

    def __init__(self, link: Connection, envs: Future[Sequence[Env]]) -> None:
        self._link, self._envs, self._sending = link, envs, threading.Lock()

    def answer(self, number: int, env: int, name: str, arguments: Sequence[Any] | None) -> bytes:
        """The pickled answer to a request; raises the exception of the request, or of opening the environments."""
        value = getattr(self._envs.result()[env], name)
        return pickle.dumps((number, None, value if arguments is None else value(*arguments)))

    def send(self, number: int, answer: Future[bytes]) -> None:
        """Sends an answer, or the error instead of it; does nothing if the other process has ended."""
        error = answer.exception()
        with self._sending, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._link.send_bytes(pickle.dumps((number, _picklable(error), None)) if error else answer.result())


def main(link: Connection) -> None:
    """Answers requests until the request to end; ends at once if the other process ends without one.

    Requests run in threads, so the main thread notices the end at any time. The programs behind the environments notice
    it through their own pipes.
    """
    opened, n = link.recv()
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(n + 1) as threads:
        handler = RequestHandler(link, threads.submit(_open, stack, opened, n, link))
        try:
            for number, *request in iter(link.recv, None):
                answer = threads.submit(handler.answer, number, *request)
                answer.add_done_callback(functools.partial(handler.send, number))
        except (EOFError, OSError):
            os._exit(1)


def _open(stack: contextlib.ExitStack, opened: Pool, n: int, link: Connection) -> Sequence[Env]:
    """The environments, open until `stack` ends; writes an `EnvError` of opening them, and then ends this process."""
    try:
        return stack.enter_context(opened(n))
    except EnvError as error:
        # No request is answered yet, so the other process reads this first.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            link.send((None, _picklable(error), None))
        os._exit(1)


def _picklable(error: BaseException) -> Exception:
    """An error that can be pickled: the kit's own errors by type, any other as a `RuntimeError` with its traceback."""
    for kind in (EnvError, UserError):
        if isinstance(error, kind):
            return kind(str(error))
    return RuntimeError("".join(traceback.format_exception(error)))


if __name__ == "__main__":
    # A terminal interrupts all processes of its group; the other process decides what happens.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(escaping.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    os.set_inheritable(descriptor := int(sys.argv[1]), False)
    main(Connection(descriptor))
