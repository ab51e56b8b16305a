"""A process that imports torch and transformers once and forks the jobs of one machine from itself.

These imports take four seconds of CPU, more than many jobs of a tiny suite need for their work. The server imports
nothing of this package that a job uses: every job imports the code as it is when the job starts.

Snakemake starts `python -m coevolve stage NAME ...`. With `COEVOLVE_JOB_SERVER` in its environment, that process (the
client) sends its arguments, environment, folder and output streams to the server, waits, and exits with the job's
status. A killed client ends its job; a killed Snakemake ends neither, as without a server.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

VARIABLE = "COEVOLVE_JOB_SERVER"
#: Modules that import what the stages with a model need. The server forgets those of this package afterwards.
PRELOADED = ("coevolve.policies.hf", "coevolve.train.dpo", "transformers.models.llama.modeling_llama")
#: Characters of a temporary folder in which a socket's name fits into Linux's 107 bytes.
LONGEST = 70
#: The sentence of a job that ended by SIGKILL.
KILLED = b"\ncoevolve: the job was killed (SIGKILL), as Linux does if memory runs out; try `--cores 1`.\n"


class JobServer:
    """The server's process as seen by Snakemake, for the jobs of `stages`.

    `environment` is what the libraries read while they are imported, such as the number of threads.
    """

    def __init__(self, stages: Sequence[str], environment: Mapping[str, str]) -> None:
        folder = "/tmp" if len(tempfile.gettempdir()) > LONGEST else None
        path = f"{tempfile.mkdtemp(prefix='coevolve-', dir=folder)}/socket"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(64)
            command = [sys.executable, "-m", __name__, str(listener.fileno())]
            self._process = subprocess.Popen(
                command, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL, env={**os.environ, **environment}
            )
        os.environ[VARIABLE] = f"{','.join(stages)}:{path}"

    def stop(self) -> None:
        """End the server after its last job."""
        del os.environ[VARIABLE]
        self._process.terminate()
        self._process.wait()


def run_job(server: str, arguments: Sequence[str]) -> int | None:
    """Run `coevolve <arguments>` in a process that is forked by the server; returns its exit status.

    `server` is the value of `COEVOLVE_JOB_SERVER`. None if the server does not run this command.
    """
    stages, _, path = server.partition(":")
    if tuple(arguments[:2]) not in {("stage", stage) for stage in stages.split(",")}:
        return None
    request = {"arguments": list(arguments), "folder": str(Path.cwd()), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
            socket.send_fds(connection, [b"\n"], [sys.stdout.fileno(), sys.stderr.fileno()])
            connection.sendall(json.dumps(request).encode() + b"\n")
            status = connection.recv(1)
        except OSError:  # the server was killed: the job runs as it would without one
            return None
        except KeyboardInterrupt:  # a terminal sends it to the job as well
            return 130
    return status[0] if status else 1


def serve(listener: socket.socket) -> None:
    """Fork a process for every connection, until Snakemake ends or sends SIGTERM; then wait for the last job."""
    snakemake, jobs = os.getppid(), 0
    stopped: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the jobs as well
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    listener.settimeout(0.5)
    while not stopped and os.getppid() == snakemake:
        jobs -= _reap(jobs)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        request, streams = _receive(connection)
        if request is None:
            connection.close()
            continue
        _preload()  # with the first job: a run that makes a table does without
        if not os.fork():
            listener.close()
            _supervise(connection, request, streams)
        jobs += 1
        connection.close()
        for stream in streams:
            os.close(stream)
    shutil.rmtree(Path(listener.getsockname()).parent)
    while jobs:
        os.wait()
        jobs -= 1


def _reap(jobs: int) -> int:
    """Collect the exit statuses of ended processes; returns their number."""
    ended = 0
    while ended < jobs and os.waitpid(-1, os.WNOHANG)[0]:
        ended += 1
    return ended


def _receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """A client's request and its two output streams; None if the client ended before its request was complete."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 2)
    with connection.makefile("rb") as file:
        line = file.readline()
    if line.endswith(b"\n"):
        return json.loads(line), streams
    for stream in streams:
        os.close(stream)
    return None, []


def _preload() -> None:
    """Import the libraries; a second call finds them imported."""
    if "torch" in sys.modules:
        return
    for name in PRELOADED:
        import_module(name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "coevolve"]:
        del sys.modules[name]
    gc.freeze()  # a collection in a job does not touch, and so copy, the shared memory


def _supervise(connection: socket.socket, request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Fork the job, send its exit status to the client, or kill the job if the client ends first.

    A job that is killed by another process, or for its memory, has a sentence on its error output.
    """
    job = os.fork()
    if not job:
        connection.close()
        _run(request, streams)
    ended = os.pidfd_open(job)
    ready, _, _ = select.select([ended, connection.fileno()], [], [])
    if ended not in ready:
        os.kill(job, signal.SIGKILL)
    _, status = os.waitpid(job, 0)
    if ended in ready:
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL:
            os.write(streams[1], KILLED)
        connection.sendall(bytes([code & 0xFF]))
    os._exit(0)


def _run(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Take the client's streams, environment and folder, and run its command; the interpreter exits as after any."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for stream, number in zip(streams, (1, 2), strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    import_module("coevolve.cli").main(request["arguments"])
    raise AssertionError("the command line ends in an exit")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
