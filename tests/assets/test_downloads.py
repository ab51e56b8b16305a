"""Downloads: pinned, whole or absent, from a mirror, a package index or the web; each failure is one sentence."""

import hashlib
import time
import zipfile

import pytest
from assets import hubserver
from assets.hubserver import REPO, REVISION, refusal, refuse, serving

from coevolve.assets import downloads
from coevolve.assets.downloads import ATTEMPTS, fetch
from coevolve.assets.settings import Source
from coevolve.errors import UserError

BODY = bytes(range(256)) * 5000
HALF = len(BODY) // 2
CHANGED = BODY[:-1] + bytes([BODY[-1] ^ 1])


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def announce(handler, _):
    handler.start(200, 10**15, {})


def wrong_part(handler, content):
    handler.answer(206, content[5:], {"Content-Range": f"bytes 5-{len(content) - 1}/{len(content)}"})


@pytest.fixture
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    (folder / "file.bin").write_bytes(BODY)
    with serving(folder) as running:
        yield running


def from_url(server, *faults):
    server.faults["file.bin"] = list(faults)
    url = f"{server.url}/{REPO}/resolve/{REVISION}/file.bin"
    return Source(file="file.bin", url=url, sha256=sha256(BODY), licence="test")


def attempt(source, tmp_path, mirror=None, total_seconds=60.0):
    """The path of the file, which is alone in its folder and was moved there from the folder of downloads."""
    path, work = tmp_path / "new/out/file.bin", tmp_path / "work"
    options = {"stall_seconds": 0.5, "pause_seconds": 0.01, "total_seconds": total_seconds}
    fetch(source, path, mirror, work, **options)
    assert list(path.parent.iterdir()) == [path]
    assert list(work.iterdir()) == []
    assert path.read_bytes() == BODY
    return path


def refused(source, tmp_path, *needles, **options):
    out = tmp_path / "new/out"
    refusal(lambda: attempt(source, tmp_path, **options), out, str(out / "file.bin"), *needles)


@pytest.mark.parametrize(
    ("first", "starts"),
    [
        (hubserver.cut, [HALF]),
        (hubserver.stall, [HALF]),
        (hubserver.close, [0]),
        (refuse(429, Retry_After="0"), [0]),
        (refuse(503), [0]),
    ],
    ids=["cut", "stalled", "closed", "too many requests", "unavailable"],
)
def test_what_may_pass_is_tried_again_from_where_it_ended(server, tmp_path, first, starts):
    attempt(from_url(server, first), tmp_path)
    assert len(server.requests) == 2
    assert server.starts == starts


def test_a_server_is_given_the_pause_it_asks_for(server, tmp_path):
    started = time.monotonic()
    attempt(from_url(server, refuse(429, Retry_After="1")), tmp_path)
    assert time.monotonic() - started >= 1.0


@pytest.mark.parametrize(
    ("faults", "requests", "words"),
    [
        ([refuse(403)], 1, "403 Forbidden"),
        ([hubserver.change], 1, f"sha256 {sha256(CHANGED)}, not {sha256(BODY)}"),
        ([hubserver.cut] * 9, ATTEMPTS, f"(received {HALF} bytes, expected {len(BODY)})), {ATTEMPTS} times"),
        ([hubserver.cut, wrong_part], 2, f"sha256 {sha256(BODY[5:])}, not {sha256(BODY)}"),
        ([hubserver.stall] * 9, ATTEMPTS, f"timed out), {ATTEMPTS} times"),
        ([refuse(500)] * 9, ATTEMPTS, "500"),
        ([refuse(299)], 1, f"sha256 {sha256(b'')}"),
        ([refuse(599)] * 9, ATTEMPTS, "the server answers 599 with an unknown status"),
        ([refuse(418)], 1, "the server answers 418"),
        ([refuse(302)], 1, "the server answers 302 Found"),
        ([refuse(200, Content_Length="many")] * 9, ATTEMPTS, "Content-Length"),
    ],
    ids=["forbidden", "changed", "cut", "another part", "stalled", "broken", "299", "599", "418", "302", "length"],
)
def test_a_failure_is_one_sentence_that_leaves_the_old_file_and_the_next_call_succeeds(
    server, tmp_path, faults, requests, words
):
    source = from_url(server, *faults)
    refused(source, tmp_path, str(source.url), words)
    assert len(server.requests) == requests
    path = attempt(from_url(server), tmp_path)
    path.write_bytes(b"old")
    with pytest.raises(UserError):
        attempt(from_url(server, hubserver.change), tmp_path)
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (refuse(429, Retry_After="9" * 5000), f"429 Too Many Requests, {ATTEMPTS} times"),
        (refuse(503, Retry_After="86400"), f"503 Service Unavailable, {ATTEMPTS} times"),
        (hubserver.endless, "bytes and not ended"),
        (announce, "announces 1,000,000,000,000,000 bytes"),
        (hubserver.drip, "the time for this download is over"),
    ],
    ids=["long pause", "a day", "endless", "announced", "slow"],
)
def test_a_server_cannot_fill_the_disk_or_hold_the_job(server, tmp_path, monkeypatch, fault, words):
    monkeypatch.setattr(downloads, "MAX_BYTES", 5_000_000)
    monkeypatch.setattr(downloads, "LONGEST_PAUSE_SECONDS", 0.1)
    refused(from_url(server, *[fault] * ATTEMPTS), tmp_path, words, total_seconds=0.6)
    assert sum(path.stat().st_size for path in (tmp_path / "work").iterdir()) < 6_500_000


@pytest.mark.parametrize(
    ("left", "starts"), [(BODY[:500_000], [500_000]), (BODY + b"more", [len(BODY) + 4, 0]), (b"damaged", [7, 0])]
)
def test_the_part_of_an_earlier_job_is_continued_or_replaced(server, tmp_path, left, starts):
    """Such as one that was killed: its part is neither lost nor left behind."""
    refused(from_url(server, hubserver.cut, refuse(403)), tmp_path, "403")
    (part,) = (tmp_path / "work").iterdir()
    assert part.read_bytes() == BODY[:HALF]
    part.write_bytes(left)
    if left == b"damaged":
        refused(from_url(server), tmp_path, "the bytes have sha256")
    attempt(from_url(server), tmp_path)
    assert server.starts == starts


def test_a_mirror_comes_before_the_web_and_is_passed_over_without_the_right_file(server, tmp_path):
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    with pytest.raises(UserError, match=r"mirror/file\.bin: no such file; http"):
        attempt(from_url(server, refuse(403)), tmp_path, mirror)
    (mirror / "file.bin").write_bytes(b"other")
    with pytest.raises(UserError, match=r"mirror/file\.bin: the bytes have sha256"):
        attempt(from_url(server, refuse(403)), tmp_path, mirror)
    attempt(from_url(server), tmp_path, mirror)
    server.requests.clear()
    (mirror / "file.bin").write_bytes(BODY)
    attempt(from_url(server), tmp_path, mirror)
    assert server.requests == []


@pytest.fixture
def index(tmp_path, monkeypatch):
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


def from_wheel(pypi="parcel==1.0", member="parcel/data/file.bin", content=BODY):
    return Source(file="file.bin", pypi=pypi, member=member, sha256=sha256(content), licence="test")


def test_a_wheels_member_is_brought_without_the_wheels_dependencies(index, tmp_path):
    wheel = sha256((index / "parcel-1.0-py3-none-any.whl").read_bytes())
    attempt(from_wheel(f"parcel==1.0 --hash=sha256:{wheel}"), tmp_path)


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
def test_a_wheel_that_cannot_be_used_is_one_sentence(index, tmp_path, source, words):
    refused(source, tmp_path, f"pip download {source.pypi}", words)


def test_a_place_that_cannot_be_written_is_named(server, tmp_path):
    (tmp_path / "new").write_bytes(b"")
    with pytest.raises(UserError, match="cannot be written"):
        attempt(from_url(server), tmp_path)
    assert server.requests == []
