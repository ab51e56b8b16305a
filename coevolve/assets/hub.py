"""Models of the Hugging Face hub at one commit: fetched once, every file checked and listed in a manifest."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from coevolve.assets.downloads import (
    MAX_BYTES,
    MAX_SECONDS,
    MIRROR_VARIABLE,
    TOO_LATE,
    FetchError,
    TransientError,
    response_error,
    with_retries,
)
from coevolve.errors import UserError
from coevolve.records.base import SCHEMA_VERSION, Record
from coevolve.storage import files, folders
from coevolve.storage.policy_dir import DOWNLOADED

MANIFEST = "manifest.json"
PUBLIC_ENDPOINT = "https://huggingface.co"


class ModelFile(Record):
    """A file of a model; `name` is a plain file name, without a folder."""

    name: Annotated[str, Field(pattern=r"^[^/\\\x00-\x1f]+$")]
    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    @model_validator(mode="after")
    def _names_a_policys_file(self) -> ModelFile:
        if not _select([self.name]):
            raise ValueError(f"`{self.name}` is not the name of a policy's file")
        return self


class Manifest(Record):
    """The files of a model as they were when they were fetched: of the repository `hub` at the commit `revision`.

    Of a dequantised model, `hub` is the path of the GGUF file and `revision` its sha256.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    hub: str
    revision: str
    files: tuple[ModelFile, ...]


def mirror_path(hub: str, revision: str) -> str:
    """Path of a model in the folder that COEVOLVE_MIRROR names."""
    return f"models/{hub.replace('/', '--')}/{revision}"


def fetch(
    hub: str, revision: str, out: Path, work: Path, mirror: Path | None, *, stall_seconds: float = 10.0,
    pause_seconds: float = 1.0, total_seconds: float = MAX_SECONDS,
) -> Manifest:  # fmt: skip
    """Write the policy's files of the model `hub` at the commit `revision`, and their `manifest.json`, to `out`.

    The folder `mirror` is searched before the network is used. Incomplete downloads stay in `work`, where the next
    attempt continues them; no download takes longer than `total_seconds`. Raises `UserError` with what was tried and
    what to do.
    """
    mirrored = _mirrored(mirror, hub, revision) if mirror else None
    try:
        if mirrored:
            source, names = mirrored, _mirrored_files(mirrored, hub, revision)
            _require_inside(mirrored, names)
        else:
            ends = time.monotonic() + total_seconds
            source, names = work, _download(hub, revision, work, stall_seconds, pause_seconds, ends)
        _require_policy(source, names)
    except FetchError as error:
        advice = f"or put its files into {mirror_path(hub, revision)} of a folder and name it in {MIRROR_VARIABLE}"
        raise UserError(f"{hub} at {revision}: not fetched: {error}; {advice}.") from None
    for name in names:
        folders.link_or_copy(source / name, out / name)
    return write_manifest(out, hub, revision, names)


def write_manifest(out: Path, hub: str, revision: str, names: Iterable[str]) -> Manifest:
    """Write the `manifest.json` of the model files `names` in the folder `out`; returns its content."""
    listed = tuple(
        ModelFile(name=name, bytes=(out / name).stat().st_size, sha256=files.sha256(out / name)) for name in names
    )
    manifest = Manifest(hub=hub, revision=revision, files=listed)
    files.write_bytes(out / MANIFEST, manifest.model_dump_json(indent=2).encode() + b"\n")
    return manifest


def read(path: Path) -> Manifest:
    """The manifest in a file; raises `UserError` if it is missing or invalid."""
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
    """The manifest at `path`, if the files beside it have its sizes and, with `thorough`, its sha256s.

    Raises `UserError` with the first file that is missing or changed.
    """
    manifest = read(path)
    advice = "; fetch the model again (delete its folder, run the stage `snapshot`)."
    for listed in manifest.files:
        file = path.parent / listed.name
        if not file.is_file():
            raise UserError(f"{file}: missing, but listed in {path.name}{advice}")
        if file.stat().st_size != listed.bytes:
            raise UserError(f"{file}: {file.stat().st_size} bytes, but {listed.bytes} in {path.name}{advice}")
        if thorough and (sha256 := files.sha256(file)) != listed.sha256:
            raise UserError(f"{file}: sha256 is {sha256}, but {listed.sha256} in {path.name}{advice}")
    return manifest


def policy_files(folder: Path) -> list[str]:
    """Names of the policy's files in `folder`; raises `UserError` if one of them, such as a shard, is missing."""
    names = _select(path.name for path in folder.iterdir() if path.is_file())
    try:
        _require_policy(folder, names)
    except FetchError as error:
        raise UserError(f"{error}; put it there.") from None
    return names


def _select(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if any(fnmatch(name, pattern) for pattern in DOWNLOADED) and "/" not in name)


def _mirrored(mirror: Path, hub: str, revision: str) -> Path | None:
    """The model's folder in a mirror: where it is put by hand, or one with its manifest, as in `data/mirror`."""
    by_hand = mirror / mirror_path(hub, revision)
    if by_hand.is_dir():
        return by_hand
    for path in sorted(mirror.glob(f"models/*/{MANIFEST}")):
        with contextlib.suppress(UserError):  # another model's, which is not needed here
            manifest = read(path)
            if (manifest.hub, manifest.revision) == (hub, revision):
                return path.parent
    return None


def _mirrored_files(folder: Path, hub: str, revision: str) -> list[str]:
    """Names of the model's files in a folder of the mirror; with a manifest they are verified."""
    path = folder / MANIFEST
    if not path.is_file():
        return _select(path.name for path in folder.iterdir() if path.is_file())
    manifest = verify(path)
    if (manifest.hub, manifest.revision) != (hub, revision):
        raise FetchError(f"{path} is of {manifest.hub} at {manifest.revision}")
    return [file.name for file in manifest.files]


def _require_inside(folder: Path, names: Iterable[str]) -> None:
    """Raise `FetchError` for a link that leads out of the model's folder in the mirror."""
    root = folder.parent.resolve()
    for name in names:
        if not (folder / name).resolve().is_relative_to(root):
            raise FetchError(f"{folder / name} is a link to a file outside {folder.parent}")


def _require_policy(folder: Path, names: list[str]) -> None:
    """Raise `FetchError` unless the files are a complete policy, with all shards of the weights."""
    required = {"config.json": "a config", "tokenizer*": "a tokenizer", "*.safetensors": "weights as safetensors"}
    for pattern, content in required.items():
        if not any(fnmatch(name, pattern) for name in names):
            raise FetchError(f"{folder}: no {pattern} in it, and a policy needs {content}")
    for index in (name for name in names if name.endswith(".index.json")):
        try:
            shards = {str(shard) for shard in json.loads((folder / index).read_bytes())["weight_map"].values()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise FetchError(f"{folder / index} is not an index of weights") from None
        if missing := sorted(shards - set(names)):
            raise FetchError(f"{folder}: {missing[0]}, a shard in {index}, is missing")


def _download(
    hub: str, revision: str, work: Path, stall_seconds: float, pause_seconds: float, ends: float
) -> list[str]:
    """Download the model's files to `work` and compare each with the hash in the hub's listing; returns their names.

    `snapshot_download` and `verify_repo_checksums` of huggingface_hub 2.4 would do the same, but request the listing
    without a timeout: a server that accepts the connection and does not answer would block this process forever.
    """
    from huggingface_hub import HfApi

    # False: without HF_TOKEN no other token of this user is sent.
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=os.environ.get("HF_TOKEN") or False)

    def list_files() -> Any:
        with _hub_errors(hub, ends):
            return api.model_info(hub, revision=revision, files_metadata=True, timeout=stall_seconds).siblings

    with _bounded_requests(ends):
        listed = {file.rfilename: file for file in with_retries(list_files, hub, pause_seconds, ends)}
        names = _select(listed)
        for name in names:
            meter = _byte_limit(listed[name].size, ends)

            def download(name: str = name, meter: Any = meter) -> None:
                with _hub_errors(hub, ends), _without_overlong_parts(work):
                    api.hf_hub_download(
                        hub, name, revision=revision, local_dir=work, etag_timeout=stall_seconds, tqdm_class=meter
                    )
                _check_hash(work / name, listed[name])

            with_retries(download, f"{hub}/{name}", pause_seconds, ends)
    return names


class OverlongError(FetchError):
    """A server sends more than it announced."""


def _byte_limit(size: int | None, ends: float) -> Callable[..., Any]:
    """A progress bar for a download of the hub's client, which reports each chunk to it.

    Its `update` raises `OverlongError` for bytes beyond the size, and `FetchError` after the time `ends`.
    """
    from tqdm import tqdm  # type: ignore[import-untyped] # comes with the hub's client, which the core does without

    class ByteLimit(tqdm):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options, disable=True)
            self._left = (MAX_BYTES if size is None else size) - options.get("initial", 0)

        def update(self, n: float | None = 1) -> None:
            self._left -= int(n or 0)
            if self._left < 0:
                raise OverlongError("the server sends more bytes than the hub lists for this file")
            if time.monotonic() > ends:
                raise FetchError(TOO_LATE)

    return ByteLimit


@contextlib.contextmanager
def _without_overlong_parts(work: Path) -> Iterator[None]:
    """Delete the incomplete file of a download that is too long: the next attempt could not continue it."""
    try:
        yield
    except OverlongError:
        for part in work.rglob("*.incomplete"):
            part.unlink()
        raise


@contextlib.contextmanager
def _bounded_requests(ends: float) -> Iterator[None]:
    """End the requests of the hub's client at the time `ends`.

    The client would wait for as long as a server's `Retry-After` demands; here `with_retries` waits instead. It reads
    10 MB at a time, however slowly they come, so a timer closes its connections.
    """
    from huggingface_hub import close_session, set_client_factory
    from huggingface_hub.utils._http import default_client_factory

    def require_time(_: Any) -> None:
        if time.monotonic() > ends:
            raise FetchError(TOO_LATE)

    def refuse(response: Any) -> None:
        status = response.status_code
        if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise response_error(status, response.headers.get("Retry-After"))

    def client() -> Any:
        made = default_client_factory()
        hooks = {"request": require_time, "response": refuse}
        made.event_hooks = {name: [*made.event_hooks.get(name, []), hook] for name, hook in hooks.items()}
        return made

    set_client_factory(client)
    timer = threading.Timer(max(0.0, ends - time.monotonic()), close_session)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        set_client_factory(default_client_factory)
        close_session()


def _check_hash(path: Path, listed: Any) -> None:
    """Delete the file and raise `TransientError` unless it has the hub's sha256 or, if small, its git blob id."""
    from huggingface_hub.utils.sha import git_hash

    expected = listed.lfs.sha256 if listed.lfs else listed.blob_id
    actual = files.sha256(path) if listed.lfs else git_hash(path.read_bytes())
    if actual != expected:
        path.unlink()
        raise TransientError(f"{path.name} has hash {actual}, but {expected} on the hub")


@contextlib.contextmanager
def _hub_errors(hub: str, ends: float) -> Iterator[None]:
    """Turn errors of the hub's client into `FetchError` or `TransientError`."""
    from httpx2 import HTTPError
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, XetDownloadError

    try:
        yield
    except (HTTPError, OSError, XetDownloadError) as error:
        # The client raises LocalEntryNotFoundError from the actual error when there is no earlier copy of the file.
        cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) and error.__cause__ else error
        if isinstance(cause, OfflineModeIsEnabled):
            raise FetchError("HF_HUB_OFFLINE is set: unset it where there is a network") from None
        if isinstance(cause, HfHubHTTPError):
            status, headers = cause.response.status_code, cause.response.headers
            raise response_error(status, headers.get("Retry-After"), _advice(hub, status, cause)) from None
        if isinstance(cause, OSError) and cause.errno and not isinstance(cause, HTTPError | ConnectionError):
            raise  # an error of the disk, not of the network
        if time.monotonic() > ends:
            raise FetchError(TOO_LATE) from None
        reason = " ".join(str(cause).split()) or type(cause).__name__
        raise TransientError(f"the connection failed ({reason})") from None


def _advice(hub: str, status: int, error: Exception) -> str:
    """What the user can do about a refusal."""
    from huggingface_hub.errors import RevisionNotFoundError

    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        page = f"{os.environ.get('HF_ENDPOINT', PUBLIC_ENDPOINT)}/{hub}"
        token = "put a token of that account into HF_TOKEN"
        return f"accept the licence at {page} and {token}, or correct `hub` if the page does not exist"
    if isinstance(error, RevisionNotFoundError):
        return "the model has no such commit, correct `revision`"
    return "correct `hub`, or set HF_TOKEN if the model is private"
