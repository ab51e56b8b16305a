"""A process that imports torch and transformers once, from which the jobs of one machine are forked.

These imports take four seconds of CPU, more than many jobs of a tiny suite need for their work. `multiprocessing`'s
fork server imports libraries alone: every job imports this package's code as it is when the job starts.

Snakemake starts `python -m coevolve job FILE`. With `COEVOLVE_JOB_SERVER` in its environment, that process (the
client) sends its arguments, environment, folder and output streams to the server, waits, and exits with the job's
status. A killed client ends its job; a killed Snakemake ends neither, as without a server.
"""

import contextlib
import gc
import json
import os
import select
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from threading import Lock

VARIABLE = "COEVOLVE_JOB_SERVER"
#: Libraries that the stages with a model import.
PRELOADED = ("torch", "transformers.models.llama.modeling_llama", "transformers.trainer", "peft", "pydantic.types")
#: A start collects the exit codes of all ended jobs; two threads must not read the same one.
_LOCK = Lock()
#: Characters of a temporary folder in which a socket's name fits into Linux's 107 bytes.
LONGEST = 70
#: The sentence of a job that ended by SIGKILL.
KILLED = "\ncoevolve: the job was killed (SIGKILL), as Linux does if memory runs out; try `--cores 1`.\n"


class JobServer:
    """The server's process as seen by Snakemake, for the jobs of `stages`.

    `environment` is what the libraries read while they are imported, such as the number of threads.
    """

    def __init__(self, stages: Sequence[str], environment: Mapping[str, str]) -> None:
        folder = "/tmp" if len(tempfile.gettempdir()) > LONGEST else None
        path = f"{tempfile.mkdtemp(prefix='coevolve-', dir=folder)}/socket"
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        assert self._process.stdout is not None
        with self._process.stdout as listening:
            listening.readline()
        os.environ[VARIABLE] = f"{','.join(stages)}:{path}"

    def stop(self) -> None:
        """End the server after its last job."""
        del os.environ[VARIABLE]
        self._process.terminate()
        self._process.wait()


def forward(server: str, arguments: Sequence[str]) -> int | None:
    """Run `coevolve <arguments>` in a process that is forked by the server; returns its exit status.

    `server` is the value of `COEVOLVE_JOB_SERVER`. None if the server does not run this command.
    """
    stages, _, path = server.partition(":")
    if not path or list(arguments[:1]) != ["job"] or _stage(Path(arguments[1])) not in stages.split(","):
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
    if status == bytes([256 - signal.SIGKILL]):
        sys.stderr.write(KILLED)
    return status[0] if status else 1


def _stage(job: Path) -> str:
    """The stage in a job's file, read without the libraries that check it."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        return str(json.loads(job.read_bytes())["stage"])
    return ""


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Runs a job for every connection, until Snakemake ends or sends SIGTERM; then waits for the last job."""

    request_queue_size = 64
    snakemake = os.getppid()

    def service_actions(self) -> None:
        """End the server if Snakemake has ended."""
        if os.getppid() != self.snakemake:
            sys.exit()


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        """Run the client's job and send its exit status, or kill the job if the client ends first."""
        job = get_context("forkserver").Process(target=_run, args=(self.request,))
        with _LOCK:
            job.start()
        ended = select.poll()
        ended.register(job.sentinel, select.POLLIN)
        ended.register(self.request, select.POLLRDHUP)
        if job.sentinel in dict(ended.poll()):
            with _LOCK:
                job.join()
            self.request.sendall(bytes([(job.exitcode or 0) & 0xFF]))
        else:
            job.kill()


def _run(connection: socket.socket) -> None:
    """Take the client's streams, environment and folder, and run its command."""
    gc.freeze()  # a collection does not touch, and so copy, the memory that is shared with the fork server
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with connection, connection.makefile("rb") as file:
        _, streams, _, _ = socket.recv_fds(connection, 1, 2)
        line = file.readline()
    if not line.endswith(b"\n"):
        return  # the client ended before its request was complete
    for stream, number in zip(streams, (1, 2), strict=True):
        os.dup2(stream, number)
        os.close(stream)
    request = json.loads(line)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    import_module("coevolve.cli").main(request["arguments"])


def _serve(path: str) -> None:
    """Listen at `path`; its folder is deleted at the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the jobs as well
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    get_context("forkserver").set_forkserver_preload([*PRELOADED])
    try:
        with _Server(path, _Handler) as server:
            sys.stdout.write("listening\n")
            sys.stdout.flush()
            server.serve_forever()
    finally:
        shutil.rmtree(Path(path).parent)


if __name__ == "__main__":
    _serve(sys.argv[1])
