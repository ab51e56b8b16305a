"""A policy on disk: a directory in transformers' format with a `policy.json`.

A policy is identified by the sha256 over the files that determine its output. Other files in the directory (optimiser
states, logs, provenance) do not count. A policy of adapters has in `start.json` the policy that they were trained on,
perhaps one of adapters, too; its sha256 covers the other's.
"""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from coevolve.errors import UserError
from coevolve.records.base import SCHEMA_VERSION, Record
from coevolve.records.episodes import PolicyRef
from coevolve.storage import files, pruned

WEIGHTS = "*.safetensors"
#: Files that training does not change.
UNTRAINED = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "chat_template*",
)
#: Files that determine a policy's output.
HASHED = (WEIGHTS, "*.safetensors.index.json", "config.json", *UNTRAINED)
#: Files of a model that are downloaded: those above and its licence; not a second copy of the weights (`*.bin`).
DOWNLOADED = (*HASHED, "LICENSE*", "NOTICE*", "USE_POLICY*")
REF_NAME = "policy.json"
#: Files of a policy of adapters: the policy that they were trained on, and peft's settings.
START, ADAPTER_CONFIG = "start.json", "adapter_config.json"


class StartRecord(Record):
    """Content of `start.json`: a folder, relative to that of the file, and the sha256 in its `policy.json`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    folder: str
    sha256: str


@dataclass(frozen=True)
class StartPolicy:
    """The folder of the policy that adapters were trained on, and the sha256 that it had."""

    folder: Path
    sha256: str


def checkpoint_files(folder: Path) -> list[str]:
    """Names of the files of a checkpoint that the kit did not make; none without `config.json`."""
    if not (folder / "config.json").exists():
        return []
    ours = (REF_NAME, files.PROVENANCE)
    names = (path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return sorted(name for name in names if name not in ours)


def seal(path: Path, name: str, base: str, revision: str) -> PolicyRef:
    """Write `policy.json` for the files in `path`; returns its content."""
    ref = PolicyRef(name=name, sha256=digest(path), base=base, revision=revision)
    files.write_bytes(path / REF_NAME, ref.to_json().encode() + b"\n")
    return ref


def describe(path: Path) -> PolicyRef:
    """The content of `policy.json`; raises `UserError` unless the files hash to its sha256.

    So must those of the policy that adapters were trained on.
    """
    actual = digest(path)
    ref = read_ref(path / REF_NAME)
    if ref.sha256 != actual:
        raise UserError(
            f"{path}: its files hash to {actual}, but {REF_NAME} has {ref.sha256};"
            " rerun the stage that made the policy."
        )
    if (start := start_of(path)) and describe(start.folder).sha256 != start.sha256:
        raise UserError(f"{path}: {start.folder} is not the policy that its adapters were trained on; rerun its stage.")
    return ref


def write_start(path: Path, start: Path, sha256: str) -> None:
    """Name the policy in `start` as that which the adapters in `path` were trained on."""
    folder = os.path.relpath(start.resolve(), path.resolve())
    files.write_bytes(path / START, StartRecord(folder=folder, sha256=sha256).to_json().encode() + b"\n")


def start_of(path: Path) -> StartPolicy | None:
    """The policy that the adapters in a directory were trained on; None for whole weights, `UserError` if damaged."""
    if not (file := path / START).exists():
        return None
    try:
        record = StartRecord.from_json(files.read_bytes(file))
    except ValidationError:
        raise UserError(f"{file}: unreadable; rerun the stage that made the policy.") from None
    return StartPolicy(Path(os.path.normpath(path.resolve() / record.folder)), record.sha256)


def first_of(path: Path) -> Path:
    """The folder of the first policy of a chain of adapters, which has whole weights; `path` if it has them."""
    start = start_of(path)
    return first_of(start.folder) if start else path


def copy_files(path: Path, out: Path, patterns: Iterable[str]) -> None:
    """Copy the files that match, byte for byte."""
    for file in (file for pattern in patterns for file in path.glob(pattern)):
        files.write_bytes(out / file.name, file.read_bytes())


def read_ref(path: Path) -> PolicyRef:
    """The content of a `policy.json`; raises `UserError` if it is missing or invalid."""
    try:
        return PolicyRef.from_json(files.read_bytes(path) if path.exists() else b"")
    except ValidationError:
        raise UserError(f"{path}: missing or unreadable; rerun the stage that made the policy.") from None


def digest(path: Path) -> str:
    """sha256 over the names and hashes of the files that match `HASHED`; of adapters also over their start policy's."""
    require_weights(path)
    start = start_of(path)
    patterns = (*HASHED, ADAPTER_CONFIG) if start else HASHED
    hashed = sorted({file for pattern in patterns for file in path.glob(pattern) if file.is_file()})
    listing = "".join(f"{file.name} {files.sha256(file)}\n" for file in hashed)
    if start:
        listing += f"{START} {start.sha256}\n"
    return hashlib.sha256(listing.encode()).hexdigest()


def require_weights(path: Path) -> None:
    """Raise `UserError` unless the directory has weights."""
    if mark := pruned.read(path):
        raise UserError(f"{path}: its weights were deleted after their last use; `{mark.remake}` makes them again.")
    if not any(path.glob(WEIGHTS)):
        raise UserError(f"{path}: policy directory without weights; put model.safetensors there or rerun its stage.")
