"""Environments in processes of their own, for those whose steps keep a processor busy.

Python runs one thread at a time, so all environments of a process share one core. Here each process
(`coevolve.envs.worker_process`) opens a share of them and does their steps. What answers behind them, such as a server
or a JVM, it has for itself.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

from coevolve.envs import worker_process
from coevolve.envs.base import Env, EnvError, Setup, StepResult
from coevolve.envs.registry import domain
from coevolve.types import Task

#: What has not ended so many seconds after it was told to is killed.
PATIENCE_S = 30.0


def environments(setup: Setup, n: int) -> AbstractContextManager[Sequence[Env]]:
    """`n` environments of a suite, in as many processes as its section says."""
    return pool(functools.partial(domain(setup.config).pool, setup), n, setup.config.processes)


@contextlib.contextmanager
def pool(opened: worker_process.Pool, n: int, processes: int) -> Iterator[Sequence[Env]]:
    """`n` environments as the picklable `opened` opens them, divided among `processes` (0: all in this one).

    The processes end with the block, and when this one ends, however it does. One that is gone is an `EnvError` to its
    running episodes; what starts there next has a new one. `UserError` and `EnvError` come from there as they are, any
    other error as a `RuntimeError` with its traceback.
    """
    if not processes:
        with opened(n) as envs:
            yield envs
        return
    # A rollout steps every second environment at a time: neighbours share a process, so that none is idle.
    homes = [i // 2 % processes for i in range(n)]
    with contextlib.ExitStack() as stack:
        shares = [homes.count(home) for home in range(len(set(homes)))]
        workers = [stack.enter_context(contextlib.closing(Worker(opened, share))) for share in shares]
        yield [RemoteEnv(workers[home], homes[:i].count(home)) for i, home in enumerate(homes)]


class RemoteEnv:
    """An environment that lives in a worker. Implements `coevolve.envs.base.Env`; any call may raise `EnvError`."""

    def __init__(self, worker: Worker, number: int) -> None:
        self._worker, self._number, self._process = worker, number, worker.living()
        self.identity: str = self._process.ask(number, "identity")

    def parse(self, text: str) -> str | None:
        """The action in a policy's text, None if it holds none."""
        action: str | None = self._process.ask(self._number, "parse", (text,))
        return action

    def start(self, task: Task) -> str:
        """Begin `task`; in a new process, if the last one is gone."""
        self._process = self._worker.living()
        text: str = self._process.ask(self._number, "start", (task,))
        return text

    def step(self, action: str | None) -> StepResult:
        """Do `action` in the running episode."""
        result: StepResult = self._process.ask(self._number, "step", (action,))
        return result

    def step_limit(self, task: Task) -> int:
        """Largest number of steps an episode of `task` may have."""
        limit: int = self._process.ask(self._number, "step_limit", (task,))
        return limit

    def close(self) -> None:
        """Forget the episode; the process is ended by whoever opened the pool."""
        with contextlib.suppress(EnvError):
            self._process.ask(self._number, "close", ())


class Worker:
    """A share of `n` environments, and the process they live in."""

    def __init__(self, opened: worker_process.Pool, n: int) -> None:
        self._opened, self._n, self._replacing = opened, n, threading.Lock()
        self._process = Process(opened, n)

    def living(self) -> Process:
        """The process; a new one if the last one is gone."""
        with self._replacing:
            if self._process.gone:
                self._process.end()
                self._process = Process(self._opened, self._n)
            return self._process

    def close(self) -> None:
        """End the process."""
        self._process.end()


class Process:
    """A process with `n` environments, and the pipe to it; `gone` once that is broken."""

    def __init__(self, opened: worker_process.Pool, n: int) -> None:
        greeting = pickle.dumps((opened, n))
        self.gone = False
        self._waiting: dict[int, Future[Any]] = {}
        self._numbers, self._sending = itertools.count(), threading.Lock()
        self._link, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", worker_process.__name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._link.send_bytes(greeting)

    def ask(self, env: int, name: str, arguments: Sequence[Any] | None = None) -> Any:
        """An attribute of an environment, or what a method of it returns; raises what that raises.

        Raises `EnvError` if the process is gone before it has answered.
        """
        answer: Future[Any] = Future()
        with self._sending:
            if self.gone:
                raise self._loss()
            self._waiting[number := next(self._numbers)] = answer
            self._send((number, env, name, arguments))
        return answer.result()

    def end(self) -> None:
        """Tell the process to end and wait until it has; kill it if it is gone, or does not listen."""
        self._send(None)
        try:
            self._process.wait(0.0 if self.gone else PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._link.close()

    def _send(self, message: object) -> None:
        """Send to the process; that nobody is there is for the reader to find."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._link.send(message)

    def _read(self) -> None:
        """Hand each answer to whoever waits for it, and an `EnvError` to those who wait when the pipe breaks."""
        with contextlib.suppress(EOFError, OSError):  # which half a message is, too
            while True:
                number, error, result = self._link.recv()
                waiting = self._waiting.pop(number)
                waiting.set_exception(error) if error else waiting.set_result(result)
        with self._sending:
            self.gone = True
        for waiting in self._waiting.values():
            waiting.set_exception(self._loss())

    def _loss(self) -> EnvError:
        return EnvError(f"process {self._process.pid}, in which this environment lived, has ended")
