"""Models of the hub at one commit: fetched once, every file checked, and named in a manifest with their sha256s."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from coevolve.assets.downloads import FOLDER, FetchError, PassingError, patiently
from coevolve.errors import UserError
from coevolve.storage import files
from coevolve.storage.policy_dir import DOWNLOADED
from coevolve.types import SCHEMA_VERSION, Record

MANIFEST = "manifest.json"
PUBLIC = "https://huggingface.co"


class ModelFile(Record):
    """A file of a model."""

    name: str
    bytes: int
    sha256: str


class Manifest(Record):
    """The files of a model at a commit, as they were when they were fetched."""

    schema_version: Literal[1] = SCHEMA_VERSION
    hub: str
    revision: str
    files: tuple[ModelFile, ...]


def place(hub: str, revision: str) -> str:
    """Where a model lies in the folder that COEVOLVE_MIRROR names."""
    return f"models/{hub.replace('/', '--')}/{revision}"


def fetch(
    hub: str, revision: str, out: Path, work: Path, mirror: Path | None, *, stall_seconds: float = 10.0,
    pause_seconds: float = 1.0,
) -> Manifest:  # fmt: skip
    """Leave the policy's files of `hub` at the commit `revision` in `out`, with `manifest.json` beside them.

    The folder `mirror` is looked into before the network. What was downloaded in part stays in `work`, and the next
    attempt goes on from there. Raises `UserError` saying what was tried and what is to be done.
    """
    given = mirror / place(hub, revision) if mirror else None
    try:
        if given and given.is_dir():
            source, names = given, _given(given, hub, revision)
        else:
            source, names = work, _download(hub, revision, work, stall_seconds, pause_seconds)
        _complete(source, names)
    except FetchError as error:
        way = f"or put its files into {place(hub, revision)} of a folder and name the folder in {FOLDER}"
        raise UserError(f"{hub} at {revision}: not fetched: {error}; {way}.") from None
    for name in names:
        link_or_copy(source / name, out / name)
    manifest = Manifest(hub=hub, revision=revision, files=tuple(_describe(out / name) for name in names))
    files.write_bytes(out / MANIFEST, manifest.model_dump_json(indent=2).encode() + b"\n")
    return manifest


def read(path: Path) -> Manifest:
    """What a manifest says; raises `UserError` if it is none."""
    try:
        return Manifest.from_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run the stage `snapshot`, or `coevolve mirror list`.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "(top level)"
        raise UserError(
            f"{path}: key `{where}`: {first['msg']}; delete the file and run the stage `snapshot`."
        ) from None


def verify(path: Path, *, thorough: bool = True) -> Manifest:
    """The manifest at `path`, after the files beside it were found to be the ones it names.

    Without `thorough` only sizes are compared. Raises `UserError` naming the first file that is missing or changed.
    """
    manifest = read(path)
    for file in manifest.files:
        found = path.parent / file.name
        fix = "; fetch the model again (delete its folder, run the stage `snapshot`)."
        if not found.is_file():
            raise UserError(f"{found}: missing, {path.name} names it{fix}")
        if found.stat().st_size != file.bytes:
            raise UserError(f"{found}: {found.stat().st_size} bytes, {path.name} says {file.bytes}{fix}")
        if thorough and (sha256 := files.sha256(found)) != file.sha256:
            raise UserError(f"{found}: sha256 is {sha256}, {path.name} says {file.sha256}{fix}")
    return manifest


def link_or_copy(source: Path, target: Path) -> None:
    """The same bytes under a second name; a second time only where the file system allows no hard link."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def _describe(path: Path) -> ModelFile:
    return ModelFile(name=path.name, bytes=path.stat().st_size, sha256=files.sha256(path))


def _wanted(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if any(fnmatch(name, kind) for kind in DOWNLOADED) and "/" not in name)


def complete(folder: Path) -> list[str]:
    """Names of a policy's files in `folder`; raises `UserError` unless they make one, all shards included."""
    names = _wanted(found.name for found in folder.iterdir() if found.is_file())
    try:
        _complete(folder, names)
    except FetchError as error:
        raise UserError(f"{error}; put it there.") from None
    return names


def _given(folder: Path, hub: str, revision: str) -> list[str]:
    """The files of a folder; those its manifest names, checked, where it has one."""
    path = folder / MANIFEST
    if not path.is_file():
        return _wanted(found.name for found in folder.iterdir() if found.is_file())
    manifest = verify(path)
    if (manifest.hub, manifest.revision) != (hub, revision):
        raise FetchError(f"{path} is of {manifest.hub} at {manifest.revision}")
    return [file.name for file in manifest.files]


def _complete(folder: Path, names: list[str]) -> None:
    """Raise `FetchError` unless the files make a policy, all shards of the weights included."""
    needed = {"config.json": "a config", "tokenizer*": "a tokenizer", "*.safetensors": "weights as safetensors"}
    for kind, what in needed.items():
        if not any(fnmatch(name, kind) for name in names):
            raise FetchError(f"{folder}: no {kind} in it, and a policy needs {what}")
    for index in (name for name in names if name.endswith(".index.json")):
        shards = json.loads((folder / index).read_bytes())["weight_map"].values()
        if missing := sorted(set(shards) - set(names)):
            raise FetchError(f"{folder}: {missing[0]}, which {index} names, is missing")


def _download(hub: str, revision: str, work: Path, stall_seconds: float, pause_seconds: float) -> list[str]:
    """Names of the model's files, brought to `work` and found to be what the hub says they are."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=os.environ.get("HF_TOKEN") or False)

    def listing() -> Any:
        with _in_words(hub):
            return api.model_info(hub, revision=revision, files_metadata=True, timeout=stall_seconds).siblings

    listed = {file.rfilename: file for file in patiently(listing, hub, pause_seconds)}
    names = _wanted(listed)
    for name in names:

        def bring(name: str = name) -> None:
            with _in_words(hub):
                api.hf_hub_download(hub, name, revision=revision, local_dir=work, etag_timeout=stall_seconds)
            _check(work / name, listed[name])

        patiently(bring, f"{hub}/{name}", pause_seconds)
    return names


def _check(path: Path, listed: Any) -> None:
    """Compare a file with what the hub says of it: the sha256 of a large file, git's blob id of a small one."""
    if listed.lfs:
        expected, found = listed.lfs.sha256, files.sha256(path)
    else:
        content = path.read_bytes()
        expected, found = listed.blob_id, hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    if found != expected:
        path.unlink()
        raise PassingError(f"{path.name} came with hash {found}, the hub says {expected}")


@contextlib.contextmanager
def _in_words(hub: str) -> Iterator[None]:
    """What the hub's client raises, as an attempt that failed for good or may succeed later."""
    from httpx2 import HTTPError
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, XetDownloadError

    try:
        yield
    except (HTTPError, OSError, XetDownloadError) as error:
        # The client wraps what went wrong when it has no earlier copy to offer instead.
        cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) and error.__cause__ else error
        if isinstance(cause, OfflineModeIsEnabled):
            raise FetchError("HF_HUB_OFFLINE is set: unset it where there is a network") from None
        if isinstance(cause, HfHubHTTPError):
            raise _answer(hub, cause) from None
        if isinstance(cause, OSError) and cause.errno and not isinstance(cause, HTTPError | ConnectionError):
            raise  # the disk's trouble, not the network's
        raise PassingError(f"the connection failed ({' '.join(str(cause).split()) or type(cause).__name__})") from None


def _answer(hub: str, error: Any) -> FetchError:
    """A refusal, with what the user can do about it."""
    from huggingface_hub.errors import RevisionNotFoundError

    status = HTTPStatus(error.response.status_code)
    said = f"the server answers {status.value} {status.phrase}"
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return PassingError(said, error.response.headers.get("Retry-After"))
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        page = f"{os.environ.get('HF_ENDPOINT', PUBLIC)}/{hub}"
        token = "put a token of that account into HF_TOKEN"
        return FetchError(
            f"{said}: accept the licence at {page} and {token}, or correct `hub` if there is no such page"
        )
    if isinstance(error, RevisionNotFoundError):
        return FetchError(f"{said}: it has no such commit, correct `revision`")
    return FetchError(f"{said}: correct `hub`, or set HF_TOKEN if the model is private")
