"""A hub with one model on loopback: the part of the hub's API that a snapshot uses, with faults on demand."""

import contextlib
import hashlib
import http.server
import json
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from coevolve.errors import UserError

REPO = "owner/tiny"
REVISION = "0123456789abcdef0123456789abcdef01234567"
LISTING, TREE = "listing", "tree"

Fault = Callable[["Handler", bytes], None]


def refuse(status, **headers):
    def fault(handler, _):
        handler.answer(status, b"", {name.replace("_", "-"): value for name, value in headers.items()})

    return fault


def cut(handler, content):
    handler.start(200, len(content), {})
    handler.wfile.write(content[: len(content) // 2])


def stall(handler, content):
    cut(handler, content)
    handler.wfile.flush()
    time.sleep(1.5)


def change(handler, content):
    handler.answer(200, content[:-1] + bytes([content[-1] ^ 1]), {})


def close(handler, _):
    handler.connection.close()


def endless(handler, content):
    """A body of unknown length, which does not end before the client does."""
    handler.send_response(200)
    handler.end_headers()
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(content)


def drip(handler, content):
    """A byte at a time, so that no single read waits for long."""
    handler.start(200, len(content), {})
    with contextlib.suppress(OSError):
        for byte in content[:100]:
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
            time.sleep(0.05)


class Hub(http.server.ThreadingHTTPServer):
    """Serves the files of `folder`.

    `faults[name]` are taken, one a GET request, before the right answer is given; `faults["HEAD " + name]` likewise.
    """

    daemon_threads = True

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        self.faults: dict[str, list[Fault]] = {}
        self.requests: list[tuple[str, str]] = []
        self.tokens: set[str | None] = set()
        #: Bytes at which the parts that were sent begin.
        self.starts: list[int] = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def pages(self):
        """Name and content of what each path serves."""
        listing = {"id": REPO, "sha": REVISION, "siblings": [{"rfilename": name} for name in self.files]}
        tree = [self._entry(name, content) for name, content in self.files.items()]
        return {
            f"/api/models/{REPO}/revision/{REVISION}": (LISTING, json.dumps(listing).encode()),
            f"/api/models/{REPO}/tree/{REVISION}": (TREE, json.dumps(tree).encode()),
            **{f"/{REPO}/resolve/{REVISION}/{name}": (name, content) for name, content in self.files.items()},
        }

    @staticmethod
    def _entry(name, content):
        """A file in the hub's tree: large ones with their sha256, small ones with git's blob id."""
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        large = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        lfs = {"lfs": large} if name.endswith((".safetensors", ".bin")) else {}
        return {"type": "file", "path": name, "size": len(content), "oid": blob, **lfs}


class Handler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self):
        path = urlsplit(self.path).path
        self.server.tokens.add(self.headers["Authorization"])
        if (page := self.server.pages().get(path)) is None:
            known = path.startswith((f"/api/models/{REPO}/", f"/{REPO}/"))
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound" if known else "RepoNotFound"})
            return
        name, content = page
        self.server.requests.append((self.command, name))
        if faults := self.server.faults.get(name if self.command == "GET" else f"HEAD {name}"):
            faults.pop(0)(self, content)
        else:
            self._content(content)

    def do_HEAD(self):
        self.do_GET()

    def _content(self, content):
        first = int((self.headers["Range"] or "bytes=0-").removeprefix("bytes=").split("-")[0])
        if self.command == "GET":
            self.server.starts.append(first)
        if not first:
            self.answer(200, content, {})
        elif first < len(content):
            part = {"Content-Range": f"bytes {first}-{len(content) - 1}/{len(content)}"}
            self.answer(206, content[first:], part)
        else:
            self.answer(416, b"", {})

    def answer(self, status, content, headers):
        self.start(status, len(content), headers)
        if self.command == "GET":
            self.wfile.write(content)

    def start(self, status, length, headers):
        self.send_response(status)
        name = hashlib.sha256(self.path.encode()).hexdigest()
        always = {"X-Repo-Commit": REVISION, "ETag": f'"{name}"', "Content-Length": str(length)}
        for key, value in {**always, **headers}.items():
            self.send_header(key, value)
        self.end_headers()

    def log_message(self, *_):
        pass


def refusal(fetch, out, *needles):
    """`fetch` fails with one sentence that has the needles and names the mirror, and leaves `out` empty."""
    with pytest.raises(UserError) as caught:
        fetch()
    sentence = str(caught.value)
    for needle in (*needles, "COEVOLVE_MIRROR"):
        assert needle in sentence, sentence
    assert "\n" not in sentence
    assert list(out.iterdir()) == []


@contextlib.contextmanager
def serving(folder):
    """A hub that serves the files of `folder` for the length of a block."""
    hub = Hub(folder)
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
