"""Files that the repository cannot contain, pinned by sha256 and fetched once: from a mirror, PyPI or the web."""

from __future__ import annotations

import contextlib
import functools
import http.client
import itertools
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from coevolve.config.sections import Source
from coevolve.errors import UserError
from coevolve.storage import archives, files

T = TypeVar("T")
log = logging.getLogger(__name__)

#: Names a folder with the layout of `data/mirror`, which is searched before the network is used.
MIRROR_VARIABLE = "COEVOLVE_MIRROR"
ATTEMPTS = 4
#: pip has retries and timeouts; this ends a pip process that hangs regardless.
PIP_SECONDS = 600.0
#: Longest pause between attempts that a server can request.
LONGEST_PAUSE_SECONDS = 60.0
CHUNK_BYTES = 1 << 20


#: No download takes longer in all, pauses and further attempts included.
MAX_SECONDS = 12 * 3600.0
#: A file of unknown size, which the server sends without an end, is given up here.
MAX_BYTES = 1 << 35
TOO_LATE = "the time for this download is over"


class FetchError(Exception):
    """An attempt failed; another one would fail in the same way."""


class TransientError(FetchError):
    """An attempt failed; another one may succeed after the pause of the server's `Retry-After` header, if any."""

    def __init__(self, reason: str, retry_after: str | None = None) -> None:
        super().__init__(reason)
        # A Retry-After that is a date counts as none.
        seconds = float(retry_after) if retry_after and retry_after.isdecimal() else 0.0
        self.pause_seconds = min(seconds, LONGEST_PAUSE_SECONDS)


def mirror() -> Path | None:
    """The folder that COEVOLVE_MIRROR names."""
    name = os.environ.get(MIRROR_VARIABLE)
    return Path(name) if name else None


def fetch(
    source: Source, path: Path, mirror: Path | None, work: Path | None = None, *, stall_seconds: float = 30.0,
    pause_seconds: float = 1.0, total_seconds: float = MAX_SECONDS,
) -> None:  # fmt: skip
    """Write the source's file to `path`, if it has the source's sha256; an existing file is replaced at the end.

    The folder `mirror` is searched first. A download that ends early stays in the folder `work`, where the next call
    continues it; without `work` nothing stays. A connection without data for `stall_seconds` is closed, and every
    connection after `total_seconds`; pauses between attempts start at `pause_seconds` and double. Raises `UserError`
    with what was tried and how it failed.
    """
    ends = time.monotonic() + total_seconds
    methods: dict[str, Callable[[Path], None]] = {}
    if mirror:
        methods[str(mirror / source.file)] = functools.partial(_copy, mirror / source.file)
    if source.url:
        methods[source.url] = functools.partial(_download, source.url, stall_seconds, pause_seconds, ends)
    else:
        methods[f"pip download {source.pypi}"] = functools.partial(_unpack_wheel, source)
    failures: list[str] = []
    with files.disk_errors(path), _partial_file(path, work) as part:
        for name, method in methods.items():
            try:
                _fetch_verified(method, part, source.sha256)
            except FetchError as error:
                failures.append(f"{name}: {error}")
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(part, path)
                return
    raise UserError(
        f"{path}: not fetched ({'; '.join(failures)}); put it into a folder and name the folder in {MIRROR_VARIABLE}."
    )


def with_retries(attempt: Callable[[], T], name: str, pause_seconds: float, ends: float) -> T:
    """The result of `attempt`, repeated up to `ATTEMPTS` times after a `TransientError`; then raises `FetchError`.

    No attempt begins after the time `ends` of the clock `time.monotonic`.
    """
    for number in itertools.count(1):
        try:
            return attempt()
        except TransientError as error:
            pause = max(error.pause_seconds, pause_seconds * 2 ** (number - 1))
            if number == ATTEMPTS:
                raise FetchError(f"{error}, {ATTEMPTS} times") from None
            if time.monotonic() + pause > ends:
                raise FetchError(f"{error}, and {TOO_LATE}") from None
            log.warning("%s: %s; trying again", name, error)
            time.sleep(pause)
    raise AssertionError("unreachable")


def response_error(status: int, retry_after: str | None, advice: str = "") -> FetchError:
    """The error for a response other than 200; transient if the server is overloaded or broken."""
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "with an unknown status"
    reason = f"the server answers {status} {phrase}"
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return TransientError(reason, retry_after)
    return FetchError(f"{reason}: {advice}" if advice else reason)


def _fetch_verified(method: Callable[[Path], None], part: Path, sha256: str) -> None:
    """Write a file with this sha256 to `part`; raises `FetchError` if the method fails or writes another one."""
    continued = part.exists()
    method(part)
    if (actual := files.sha256(part)) == sha256:
        return
    part.unlink()
    if not continued:
        raise FetchError(f"the bytes have sha256 {actual}, not {sha256}")
    _fetch_verified(method, part, sha256)  # what an earlier call left was damaged


def _copy(original: Path, part: Path) -> None:
    if not original.is_file():
        raise FetchError("no such file")
    shutil.copyfile(original, part)


def _download(url: str, stall_seconds: float, pause_seconds: float, ends: float, part: Path) -> None:
    def attempt() -> None:
        with part.open("ab") as file:
            _continue(file, url, stall_seconds, ends)

    with_retries(attempt, url, pause_seconds, ends)


def _continue(file: BinaryIO, url: str, stall_seconds: float, ends: float) -> None:
    """Append the rest of the response body to `file`, or replace its content where the server sends all of it.

    Raises `TransientError` if the connection ends early, and `FetchError` for a body without an end.
    """
    request = urllib.request.Request(url)
    if start := file.tell():
        request.add_header("Range", f"bytes={start}-")
    try:
        with Opener(ends).open(request, stall_seconds) as response:
            if time.monotonic() > ends:
                raise TimeoutError
            if response.status != HTTPStatus.PARTIAL_CONTENT:
                start = file.truncate(0)
            elif not str(response.headers["Content-Range"]).startswith(f"bytes {start}-"):
                file.truncate(0)
                raise TransientError("the server sent another part than it was asked for")
            _append(file, response, start, ends)
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            file.truncate(0)
            raise TransientError("the server has no such part") from None
        raise response_error(error.code, error.headers["Retry-After"]) from None
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, OSError) and not isinstance(error, urllib.error.URLError) and files.is_disk_problem(error):
            raise
        if time.monotonic() > ends:
            raise FetchError(TOO_LATE) from None
        raise TransientError(f"the connection failed ({getattr(error, 'reason', error)})") from None


def _append(file: BinaryIO, response: http.client.HTTPResponse, start: int, ends: float) -> None:
    """Append the response body, which begins at byte `start`; raises `TransientError` if it ends before its length."""
    announced = None if response.length is None else start + response.length
    if announced is not None and announced > MAX_BYTES:
        raise FetchError(f"the server announces {announced:,} bytes, and at most {MAX_BYTES:,} are accepted")
    received = start
    while chunk := response.read1(CHUNK_BYTES):
        received += len(chunk)
        if received > MAX_BYTES:
            raise FetchError(f"the server has sent {received:,} bytes and not ended")
        if time.monotonic() > ends:
            raise FetchError(f"{TOO_LATE} after {received:,} bytes")
        file.write(chunk)
    if announced is not None and received != announced:
        raise TransientError(f"the connection ended after {received} of {announced} bytes")


class Opener(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Opens URLs on connections that are closed at the time `ends`, also while a server sends its headers slowly."""

    def __init__(self, ends: float) -> None:
        super().__init__()
        self._ends = ends
        self._opener = urllib.request.build_opener(self)

    def open(self, request: urllib.request.Request, stall_seconds: float) -> Any:
        """The response; raises as `urllib.request.urlopen`, and `TimeoutError` once the time is over."""
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError(TOO_LATE)
        return self._opener.open(request, timeout=min(stall_seconds, left))

    def do_open(self, http_class: Any, req: urllib.request.Request, **http_conn_args: Any) -> http.client.HTTPResponse:
        """The response on a connection of the class; called by urllib, once for each redirection."""
        connections: list[http.client.HTTPConnection] = []

        def connect(*arguments: Any, **options: Any) -> http.client.HTTPConnection:
            connections.append(http_class(*arguments, **options))
            return connections[-1]

        timer = threading.Timer(max(0.0, self._ends - time.monotonic()), _shut, [connections])
        timer.daemon = True
        timer.start()
        try:
            return super().do_open(connect, req, **http_conn_args)
        finally:
            timer.cancel()


def _shut(connections: list[http.client.HTTPConnection]) -> None:
    for connection in connections:
        with contextlib.suppress(OSError, AttributeError):  # not connected, or no longer
            connection.sock.shutdown(socket.SHUT_RDWR)


def _unpack_wheel(source: Source, part: Path) -> None:
    """Write the source's member of a wheel, which pip downloads under the user's own pip configuration."""
    with tempfile.TemporaryDirectory() as folder:
        # A requirement in a file may have a `--hash=sha256:...` of the wheel, which pip then checks.
        requirement = Path(folder, "requirements.txt")
        requirement.write_text(f"{source.pypi}\n", encoding="utf-8")
        _pip("download", "--no-deps", "--only-binary", ":all:", "--dest", folder, "--requirement", str(requirement))
        wheels = list(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise FetchError(f"pip downloaded {len(wheels)} wheels, not one")
        try:
            with archives.open_zip(wheels[0]) as archive:
                part.write_bytes(archives.read_member(archive, source.member or ""))
        except KeyError:
            raise FetchError(f"{wheels[0].name} has no file `{source.member}`") from None
        except UserError as error:
            raise FetchError(str(error)) from None


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise FetchError(f"not finished after {PIP_SECONDS:.0f} s") from None
    if done.returncode:
        lines = done.stderr.splitlines()
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no reason given"]
        raise FetchError(errors[-1])


@contextlib.contextmanager
def _partial_file(path: Path, work: Path | None) -> Iterator[Path]:
    """The file that a download is written to: one in `work`, which stays, or one that is deleted with the block."""
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
        yield work / f"{path.name}.part"
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        yield Path(folder, "part")
