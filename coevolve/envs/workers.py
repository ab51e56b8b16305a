"""Environments in worker processes, for those whose steps keep a processor busy.

Python runs one thread at a time, so all environments of a process share one core. Here each worker process
(`coevolve.envs.worker_process`) opens a share of them and executes their steps. It starts its own servers and JVMs.
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
from typing import Any, cast

from coevolve.envs import worker_process
from coevolve.envs.base import Env, EnvError, InterruptedEpisodeError, Setup, StepResult
from coevolve.envs.checked import CheckedEnv
from coevolve.envs.registry import domain
from coevolve.envs.section import distributions
from coevolve.errors import UserError
from coevolve.records.episodes import Task
from coevolve.storage import code_digest

#: A worker process that has not ended this many seconds after the request to end is killed.
END_TIMEOUT_S = 30.0


def environments(setup: Setup, n: int) -> AbstractContextManager[Sequence[Env]]:
    """`n` checked environments of a suite, in as many worker processes as its section configures, all of the same code.

    An environment of another distribution has at least one process, which can be killed when a step does not end.
    """
    opened = functools.partial(domain(setup.config).pool, setup)
    module = opened.func.__module__
    code = code_digest.code_digest(module)
    processes = setup.config.processes or int(bool(distributions([setup.config.kind])))
    return pool(functools.partial(_same_code, opened, module, code), n, processes, setup.config.step_seconds)


@contextlib.contextmanager
def _same_code(opened: worker_process.Pool, module: str, code: str, n: int) -> Iterator[Sequence[Env]]:
    """`n` checked environments; raises `UserError` if the code that this process has loaded has another digest."""
    if code_digest.code_digest(module) != code:
        raise UserError(f"the code of {module} changed while the job ran; run the same command again.")
    with opened(n) as envs:
        yield [CheckedEnv(env) for env in envs]


@contextlib.contextmanager
def pool(
    opened: worker_process.Pool, n: int, processes: int, step_seconds: float | None = None
) -> Iterator[Sequence[Env]]:
    """`n` environments that the picklable `opened` opens, divided among `processes` (0: all in this process).

    The worker processes end with the block, and whenever this process ends. A worker process in which a call takes
    longer than `step_seconds` is killed. If one ends early, or cannot open its environments, its running episodes raise
    `EnvError`, and the next `start` uses a new worker process. `UserError` and `EnvError` are passed on; any other
    error is raised as a `RuntimeError` with its traceback.
    """
    if not processes:
        with opened(n) as envs:
            yield envs
        return
    # A rollout steps every second environment at a time: two neighbours share a process, so all processes are busy.
    homes = [i // 2 % processes for i in range(n)]
    with contextlib.ExitStack() as stack:
        shares = [homes.count(home) for home in range(len(set(homes)))]
        workers = [stack.enter_context(contextlib.closing(Worker(opened, share))) for share in shares]
        yield [RemoteEnv(workers[home], homes[:i].count(home), step_seconds) for i, home in enumerate(homes)]


class RemoteEnv:
    """An environment in a worker process. Implements `coevolve.envs.base.Env`; any call may raise `EnvError`."""

    def __init__(self, worker: Worker, number: int, step_seconds: float | None) -> None:
        self._worker, self._number, self._seconds = worker, number, step_seconds
        self._connect()

    def parse(self, text: str) -> str | None:
        """The action in a policy's text; None if there is none."""
        return cast("str | None", self._call("parse", text))

    def start(self, task: Task) -> str:
        """Starts `task`, in a new process if the last one has ended."""
        self._connect()
        return cast(str, self._call("start", task))

    def step(self, action: str | None) -> StepResult:
        """Executes `action` in the running episode."""
        return cast(StepResult, self._call("step", action))

    def step_limit(self, task: Task) -> int:
        """The maximum number of steps in an episode of `task`."""
        return cast(int, self._call("step_limit", task))

    def close(self) -> None:
        """Closes the environment; the worker process ends with the pool."""
        with contextlib.suppress(EnvError):
            self._call("close")

    def _connect(self) -> None:
        """Waits until the environment is open in the running process, or in a new one if that has ended."""
        self._process = self._worker.living()
        self.identity: str = self._process.call(self._number, "identity")

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._process.call(self._number, name, arguments, self._seconds)


class Worker:
    """A share of `n` environments and the worker process that runs them, replaced when it has ended."""

    def __init__(self, opened: worker_process.Pool, n: int) -> None:
        self._opened, self._n, self._replacing = opened, n, threading.Lock()
        self._process = WorkerProcess(opened, n)

    def living(self) -> WorkerProcess:
        """The running process; a new one if the last one has ended."""
        with self._replacing:
            if self._process.ended:
                self._process.end()
                self._process = WorkerProcess(self._opened, self._n)
            return self._process

    def close(self) -> None:
        """Ends the process."""
        self._process.end()


class WorkerProcess:
    """A process with `n` environments, and the pipe to it; `ended` once the pipe is broken."""

    def __init__(self, opened: worker_process.Pool, n: int) -> None:
        greeting = pickle.dumps((opened, n))
        self.ended, self._opening_error = False, ""
        self._blamed = False  # it ended during another environment's call
        self._waiting: dict[int, Future[Any]] = {}
        self._numbers, self._sending = itertools.count(), threading.Lock()
        self._link, remote_end = multiprocessing.Pipe()
        with remote_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", worker_process.__name__, str(remote_end.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[remote_end.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._link.send_bytes(greeting)

    def call(self, env: int, name: str, arguments: Sequence[Any] | None = None, seconds: float | None = None) -> Any:
        """An attribute of an environment, or a method's result or exception; an `EnvError` where the process ends.

        It is killed if there is no answer within `seconds`.
        """
        answer: Future[Any] = Future()
        with self._sending:
            if self.ended:
                raise self._loss()
            self._waiting[number := next(self._numbers)] = answer
            self._send((number, env, name, arguments))
        try:
            return answer.result(seconds)
        except TimeoutError:
            self._blamed = True
            self._process.kill()
            self._reader.join()
            raise EnvError(f"`{name}` took longer than `step_seconds: {seconds:g}`; its process was killed") from None

    def end(self) -> None:
        """Requests the end of the process and waits for it; kills a process that does not answer."""
        self._send(None)
        try:
            self._process.wait(0.0 if self.ended else END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._link.close()

    def _send(self, message: object) -> None:
        """Sends to the process; the reader thread notices a broken pipe."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._link.send(message)

    def _read(self) -> None:
        """Passes each answer to its caller; when the pipe breaks, all waiting callers get an `EnvError`."""
        with contextlib.suppress(EOFError, OSError):  # an incomplete message is an OSError
            while True:
                number, error, result = self._link.recv()
                if number is None:
                    self._opening_error = str(error)
                    break
                waiting = self._waiting.pop(number)
                waiting.set_exception(error) if error else waiting.set_result(result)
        with self._sending:
            self.ended = True
        for waiting in self._waiting.values():
            waiting.set_exception(self._loss())
        self._blamed = self._blamed or bool(self._waiting)

    def _loss(self) -> EnvError:
        ended = f"process {self._process.pid}, in which this environment lived, has ended"
        return (InterruptedEpisodeError if self._blamed else EnvError)(self._opening_error or ended)
