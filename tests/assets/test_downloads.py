"""Downloads: pinned, whole or absent, from a mirror, a package index or the web; each failure is one sentence."""

import contextlib
import hashlib
import http.server
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coevolve.assets import downloads
from coevolve.assets.downloads import ATTEMPTS, fetch
from coevolve.config.sections import Source
from coevolve.errors import UserError

BODY = bytes(range(256)) * 5000
Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def send(content: bytes, announced: int | None = None) -> Answer:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(announced or len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def refuse(status: int, **headers: str) -> Answer:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()

    return answer


def stall(handler: http.server.BaseHTTPRequestHandler) -> None:
    send(BODY[:1000], announced=len(BODY))(handler)
    handler.wfile.flush()
    time.sleep(1.5)


def ranged(handler: http.server.BaseHTTPRequestHandler) -> None:
    """The body, or the part that the request names."""
    first = int((handler.headers["Range"] or "bytes=0-").removeprefix("bytes=").rstrip("-"))
    handler.server.starts.append(first)  # type: ignore[attr-defined]
    handler.send_response(206 if first else 200)
    if first:
        handler.send_header("Content-Range", f"bytes {first}-{len(BODY) - 1}/{len(BODY)}")
    handler.send_header("Content-Length", str(len(BODY) - first))
    handler.end_headers()
    handler.wfile.write(BODY[first:])


def endless(handler: http.server.BaseHTTPRequestHandler) -> None:
    """A body of unknown length, which does not end before the client does."""
    handler.send_response(200)
    handler.end_headers()
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b"x" * 100_000)


def slow_body(handler: http.server.BaseHTTPRequestHandler) -> None:
    send(b"", announced=1000)(handler)
    drip(handler)


def slow_headers(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.0 200 OK\r\nX-Slow: ")
    drip(handler)


def drip(handler: http.server.BaseHTTPRequestHandler) -> None:
    """A byte at a time, so that no single read waits for long."""
    with contextlib.suppress(OSError):
        for _ in range(100):
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.05)


CHANGED = send(BODY[:-1] + b"x")
CUT = send(BODY[:300_000], announced=len(BODY))


class Server(http.server.ThreadingHTTPServer):
    """Answers the n-th request with the n-th of `answers`, further ones with the last."""

    daemon_threads = True
    answers: list[Answer]
    requests = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.starts: list[int] = []


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests += 1
        answers = self.server.answers
        answers[min(self.server.requests, len(answers)) - 1](self)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def from_url(server: Server, *answers: Answer) -> Source:
    server.answers = list(answers)
    url = f"http://127.0.0.1:{server.server_port}/data/file.bin"
    return Source(file="file.bin", url=url, sha256=sha256(BODY), licence="test")


def attempt(source: Source, path: Path, mirror: Path | None = None) -> None:
    fetch(source, path, mirror, stall_seconds=0.5, pause_seconds=0.01)


def test_a_url_is_streamed_to_its_place(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "new/folder/file.bin"
    attempt(from_url(server, send(BODY)), path)
    assert path.read_bytes() == BODY
    assert [entry.name for entry in path.parent.iterdir()] == ["file.bin"]


@pytest.mark.parametrize(
    "first",
    [CUT, stall, refuse(429, Retry_After="0"), refuse(503), lambda handler: handler.connection.close()],
    ids=["cut", "stalled", "too many requests", "unavailable", "closed"],
)
def test_what_may_pass_is_tried_again(server: Server, tmp_path: Path, first: Answer) -> None:
    path = tmp_path / "file.bin"
    attempt(from_url(server, first, send(BODY)), path)
    assert path.read_bytes() == BODY
    assert server.requests == 2


def test_a_server_is_given_the_pause_it_asks_for(server: Server, tmp_path: Path) -> None:
    started = time.monotonic()
    attempt(from_url(server, refuse(429, Retry_After="1"), send(BODY)), tmp_path / "file.bin")
    assert time.monotonic() - started >= 1.0


@pytest.mark.parametrize(
    ("answer", "requests", "words"),
    [
        (refuse(403), 1, "403 Forbidden"),
        (CHANGED, 1, f"sha256 {sha256(BODY[:-1] + b'x')}, not {sha256(BODY)}"),
        (CUT, ATTEMPTS, f"ended after 300000 of {len(BODY)} bytes"),
        (stall, ATTEMPTS, "timed out"),
        (refuse(500), ATTEMPTS, "500"),
    ],
    ids=["forbidden", "changed", "cut", "stalled", "broken"],
)
def test_a_failure_is_one_sentence_and_leaves_nothing(
    server: Server, tmp_path: Path, answer: Answer, requests: int, words: str
) -> None:
    path = tmp_path / "file.bin"
    source = from_url(server, answer)
    with pytest.raises(UserError) as caught:
        attempt(source, path)
    for part in (str(path), str(source.url), words, "COEVOLVE_MIRROR"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert server.requests == requests
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (refuse(299), f"sha256 {sha256(b'')}"),
        (refuse(599), "the server answers 599 with an unknown status"),
        (refuse(418), "the server answers 418"),
        (refuse(200, Content_Length="many"), "sha256"),
        (refuse(429, Retry_After="9" * 5000), "the time for this download is over"),
        (refuse(503, Retry_After="86400"), "the time for this download is over"),
        (endless, "and not ended"),
        (send(b"", announced=10**15), "announces 1,000,000,000,000,000 bytes"),
        (slow_body, "the time for this download is over"),
        (slow_headers, "the time for this download is over"),
    ],
    ids=["299", "599", "418", "length", "long pause", "a day", "endless", "announced", "slow body", "slow headers"],
)
def test_a_server_cannot_fill_the_disk_or_hold_the_job(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer, words: str
) -> None:
    monkeypatch.setattr(downloads, "MAX_BYTES", 5_000_000)
    began = time.monotonic()
    with pytest.raises(UserError, match=words):
        fetch(from_url(server, answer), tmp_path / "x", None, stall_seconds=2.0, pause_seconds=0.01, total_seconds=0.6)
    assert time.monotonic() - began < 4.0
    assert list(tmp_path.iterdir()) == []


def test_a_cut_download_goes_on_from_its_part(server: Server, tmp_path: Path) -> None:
    attempt(from_url(server, CUT, ranged), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == BODY
    assert server.starts == [300_000]


@pytest.mark.parametrize(
    ("left", "starts"), [(BODY[:500_000], [500_000]), (b"damaged", [7, 0]), (BODY + b"more", [len(BODY) + 4, 0])]
)
def test_the_part_of_an_earlier_job_is_continued_or_replaced(
    server: Server, tmp_path: Path, left: bytes, starts: list[int]
) -> None:
    """Such as one that was killed: its part is neither lost nor left behind."""
    path, work = tmp_path / "new/file.bin", tmp_path / "work"
    work.mkdir()
    with pytest.raises(UserError):
        fetch(from_url(server, CUT, refuse(403)), path, None, work, stall_seconds=0.5, pause_seconds=0.01)
    (part,) = work.iterdir()
    assert part.read_bytes() == BODY[:300_000]
    part.write_bytes(left)

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        if int((handler.headers["Range"] or "bytes=0-")[6:-1]) >= len(BODY):
            server.starts.append(len(left))
            refuse(416)(handler)
        else:
            ranged(handler)

    server.requests = 0
    fetch(from_url(server, answer), path, None, work, stall_seconds=0.5, pause_seconds=0.01)
    assert path.read_bytes() == BODY
    assert server.starts == starts
    assert list(work.iterdir()) == []
    assert list(path.parent.iterdir()) == [path]


def test_another_part_than_was_asked_for_is_not_appended(server: Server, tmp_path: Path) -> None:
    def wrong(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes 5-{len(BODY) - 1}/{len(BODY)}")
        handler.end_headers()

    attempt(from_url(server, CUT, wrong, ranged), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == BODY
    assert server.starts == [0]


def test_a_failure_leaves_the_old_file(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    with pytest.raises(UserError):
        attempt(from_url(server, CHANGED), path)
    assert path.read_bytes() == b"old"


def test_a_mirror_comes_before_the_web(server: Server, tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror/file.bin").write_bytes(BODY)
    attempt(from_url(server, refuse(403)), tmp_path / "file.bin", tmp_path / "mirror")
    assert (tmp_path / "file.bin").read_bytes() == BODY
    assert server.requests == 0


def test_a_mirror_without_the_right_file_is_passed_over_and_named(server: Server, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    source = from_url(server, refuse(403))
    with pytest.raises(UserError, match=r"mirror/file\.bin: no such file; http"):
        attempt(source, tmp_path / "file.bin", mirror)
    (mirror / "file.bin").write_bytes(b"other")
    with pytest.raises(UserError, match=r"mirror/file\.bin: the bytes have sha256"):
        attempt(source, tmp_path / "file.bin", mirror)
    server.answers = [send(BODY)]
    attempt(source, tmp_path / "file.bin", mirror)
    assert (tmp_path / "file.bin").read_bytes() == BODY


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index of one wheel, and pip told to use nothing else."""
    folder = tmp_path / "index"
    folder.mkdir()
    about = "Metadata-Version: 2.1\nName: parcel\nVersion: 1.0\nRequires-Dist: no-such-package-anywhere\n"
    kind = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / "parcel-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("parcel/data/file.bin", BODY)
        wheel.writestr("parcel-1.0.dist-info/METADATA", about)
        wheel.writestr("parcel-1.0.dist-info/WHEEL", kind)
        wheel.writestr("parcel-1.0.dist-info/RECORD", "")
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": folder.as_uri(), "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    return folder


def from_wheel(pypi: str = "parcel==1.0", member: str = "parcel/data/file.bin", content: bytes = BODY) -> Source:
    return Source(file="file.bin", pypi=pypi, member=member, sha256=sha256(content), licence="test")


def test_a_wheels_member_is_brought_without_the_wheels_dependencies(index: Path, tmp_path: Path) -> None:
    wheel = sha256((index / "parcel-1.0-py3-none-any.whl").read_bytes())
    attempt(from_wheel(f"parcel==1.0 --hash=sha256:{wheel}"), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == BODY


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (from_wheel("parcel==2.0"), "No matching distribution found for parcel==2.0"),
        (from_wheel(f"parcel==1.0 --hash=sha256:{'0' * 64}"), "HASHES"),
        (from_wheel(member="parcel/other.bin"), "parcel-1.0-py3-none-any.whl has no file `parcel/other.bin`"),
        (from_wheel(content=b"other"), "the bytes have sha256"),
    ],
    ids=["no release", "changed wheel", "no member", "changed member"],
)
def test_a_wheel_that_cannot_be_used_is_one_sentence(index: Path, tmp_path: Path, source: Source, words: str) -> None:
    with pytest.raises(UserError) as caught:
        attempt(source, tmp_path / "file.bin")
    for part in (str(tmp_path / "file.bin"), f"pip download {source.pypi}", words, "COEVOLVE_MIRROR"):
        assert part in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["index"]


def test_a_place_that_cannot_be_written_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match="cannot be written"):
        attempt(from_url(server, send(BODY)), tmp_path / "file/file.bin")
