"""A hub with one model on loopback: the part of the hub's API that a snapshot uses, with faults on demand."""

import hashlib
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

REPO = "owner/tiny"
REVISION = "0123456789abcdef0123456789abcdef01234567"
LISTING = "listing"

Fault = Callable[["Handler", bytes], None]


def refuse(status: int, **headers: str) -> Fault:
    def fault(handler: "Handler", _: bytes) -> None:
        handler.answer(status, b"", {name.replace("_", "-"): value for name, value in headers.items()})

    return fault


def cut(handler: "Handler", content: bytes) -> None:
    handler.start(200, len(content), {})
    handler.wfile.write(content[: len(content) // 2])


def stall(handler: "Handler", content: bytes) -> None:
    cut(handler, content)
    handler.wfile.flush()
    time.sleep(1.5)


def change(handler: "Handler", content: bytes) -> None:
    handler.answer(200, content[:-1] + bytes([content[-1] ^ 1]), {})


class Hub(http.server.ThreadingHTTPServer):
    """Serves the files of `folder`; `faults[name]` are taken, one a request, before the right answer is given."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        self.faults: dict[str, list[Fault]] = {}
        self.requests: list[tuple[str, str]] = []
        self.tokens: set[str | None] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def listing(self) -> bytes:
        """The hub's listing: large files with their sha256, small ones with git's blob id."""
        siblings = [self._sibling(name, content) for name, content in self.files.items()]
        return json.dumps({"id": REPO, "sha": REVISION, "siblings": siblings}).encode()

    @staticmethod
    def _sibling(name: str, content: bytes) -> dict[str, object]:
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        large = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        lfs = {"lfs": large} if name.endswith((".safetensors", ".bin")) else {}
        return {"rfilename": name, "size": len(content), "blobId": blob, **lfs}


class Handler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def _serve(self) -> None:
        path = urlsplit(self.path).path
        self.server.tokens.add(self.headers["Authorization"])
        if path == f"/api/models/{REPO}/revision/{REVISION}":
            name, content = LISTING, self.server.listing()
        elif path.startswith(f"/{REPO}/resolve/{REVISION}/") and path.rpartition("/")[2] in self.server.files:
            name = path.rpartition("/")[2]
            content = self.server.files[name]
        else:
            known = path.startswith((f"/api/models/{REPO}/", f"/{REPO}/"))
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound" if known else "RepoNotFound"})
            return
        self.server.requests.append((self.command, name))
        faults = self.server.faults.get(name, [])
        if faults and (self.command == "GET" or name == LISTING):
            faults.pop(0)(self, content)
            return
        self._content(content)

    def _content(self, content: bytes) -> None:
        first = int((self.headers["Range"] or "bytes=0-").removeprefix("bytes=").split("-")[0])
        end = {"Content-Range": f"bytes {first}-{len(content) - 1}/{len(content)}"} if first else {}
        self.answer(206 if first else 200, content[first:], end)

    def answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.start(status, len(content), headers)
        if self.command == "GET":
            self.wfile.write(content)

    def start(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        name = hashlib.sha256(self.path.encode()).hexdigest()
        always = {"X-Repo-Commit": REVISION, "ETag": f'"{name}"', "Content-Length": str(length)}
        for key, value in {**always, **headers}.items():
            self.send_header(key, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[Hub]:
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
