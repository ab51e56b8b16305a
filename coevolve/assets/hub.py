"""Models of the Hugging Face hub at one commit: fetched once, every file checked and listed in a manifest."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from fnmatch import fnmatch
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from coevolve.assets.downloads import MIRROR_VARIABLE, FetchError, TransientError, network_error, with_retries
from coevolve.errors import UserError
from coevolve.records.base import SCHEMA_VERSION, Record
from coevolve.storage import files, folders, product_file
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
    pause_seconds: float = 1.0,
) -> Manifest:  # fmt: skip
    """Write the policy's files of the model `hub` at the commit `revision`, and their `manifest.json`, to `out`.

    The folder `mirror` is searched before the network is used. Files that were downloaded stay in `work`, where the
    next attempt adds those that are missing. Raises `UserError` with what was tried and what to do.
    """
    mirrored = _mirrored(mirror, hub, revision) if mirror else None
    try:
        if mirrored:
            names = _mirrored_files(mirrored, hub, revision)
        else:
            names = with_retries(lambda: _download(hub, revision, work, stall_seconds), hub, pause_seconds)
        source = mirrored or work
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


def verify(path: Path, *, thorough: bool = True) -> Manifest:
    """The manifest at `path`; a `UserError` for a missing file, another size or, with `thorough`, another sha256."""
    manifest = product_file.read(path, Manifest)
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
            manifest = product_file.read(path, Manifest)
            if (manifest.hub, manifest.revision) == (hub, revision):
                return path.parent
    return None


def _mirrored_files(folder: Path, hub: str, revision: str) -> list[str]:
    """Names of the model's files in a folder of the mirror, verified if there is a manifest; links may not lead out."""
    if (path := folder / MANIFEST).is_file():
        manifest = verify(path)
        if (manifest.hub, manifest.revision) != (hub, revision):
            raise FetchError(f"{path} is of {manifest.hub} at {manifest.revision}")
        names = [file.name for file in manifest.files]
    else:
        names = _select(path.name for path in folder.iterdir() if path.is_file())
    for name in names:
        if not (folder / name).resolve().is_relative_to(folder.parent.resolve()):
            raise FetchError(f"{folder / name} is a link to a file outside {folder.parent}")
    return names


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


def _download(hub: str, revision: str, work: Path, stall_seconds: float) -> list[str]:
    """Download the model's files to `work` and compare each with the hub's hash; returns their names."""
    from httpx2 import HTTPError
    from huggingface_hub import HfApi, is_offline_mode
    from huggingface_hub.errors import LocalEntryNotFoundError

    if is_offline_mode():
        raise FetchError("HF_HUB_OFFLINE is set: unset it where there is a network")
    # False: without HF_TOKEN no other token of this user is sent.
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=os.environ.get("HF_TOKEN") or False)
    try:
        # Comes first because the other requests of a listing have no timeout: a silent server would block them forever.
        info = api.model_info(hub, revision=revision, timeout=stall_seconds)
        names = _select(file.rfilename for file in info.siblings or ())
        api.snapshot_download(hub, revision=revision, local_dir=work, allow_patterns=names, etag_timeout=stall_seconds)
        changed = api.verify_repo_checksums(hub, revision=revision, local_dir=work).mismatches
    except (HTTPError, OSError, RuntimeError) as error:  # RuntimeError: of a transfer from xet, the hub's storage
        # The client raises LocalEntryNotFoundError from the actual error when there is no earlier copy of the file.
        cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) and error.__cause__ else error
        if isinstance(cause, OSError) and files.is_disk_problem(cause):
            raise
        raise network_error(cause, _advice(hub, cause)) from None
    if changed:
        for file in changed:
            (work / file["path"]).unlink()  # the client would keep it
        raise TransientError(f"{file['path']} has hash {file['actual']}, but {file['expected']} on the hub")
    return names


def _advice(hub: str, error: BaseException) -> str:
    """What the user can do about a refusal."""
    from huggingface_hub.errors import HfHubHTTPError, RevisionNotFoundError

    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        page = f"{os.environ.get('HF_ENDPOINT', PUBLIC_ENDPOINT)}/{hub}"
        token = "put a token of that account into HF_TOKEN"
        return f"accept the licence at {page} and {token}, or correct `hub` if the page does not exist"
    if isinstance(error, RevisionNotFoundError):
        return "the model has no such commit, correct `revision`"
    return "correct `hub`, or set HF_TOKEN if the model is private"
