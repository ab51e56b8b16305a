"""A policy on disk: a directory in transformers' format, and beside the weights a `policy.json` that names them.

The name of a policy is the sha256 over the files that decide what it says. Whatever else lies in the directory
(optimiser states, logs, provenance) does not count.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import ValidationError

from coevolve.errors import UserError
from coevolve.storage import files
from coevolve.types import PolicyRef

WEIGHTS = "*.safetensors"
#: What training leaves as it is.
UNTRAINED = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "chat_template*",
)
#: What decides what a policy says.
DECIDING = (WEIGHTS, "*.safetensors.index.json", "config.json", *UNTRAINED)
#: What is downloaded: also what its licence asks to be kept beside it, and no second set of weights (`*.bin`).
DOWNLOADED = (*DECIDING, "LICENSE*", "NOTICE*", "USE_POLICY*")
REF_NAME = "policy.json"


def seal(path: Path, name: str, base: str, revision: str) -> PolicyRef:
    """Name the weights in `path`: writes `policy.json` and returns what it says."""
    ref = PolicyRef(name=name, sha256=_digest(path), base=base, revision=revision)
    files.write_bytes(path / REF_NAME, ref.to_json().encode() + b"\n")
    return ref


def describe(path: Path) -> PolicyRef:
    """What `policy.json` says, after the files were found to be the ones it names; raises `UserError` otherwise."""
    found = _digest(path)
    try:
        ref = PolicyRef.from_json((path / REF_NAME).read_bytes())
    except (FileNotFoundError, ValidationError):
        raise UserError(f"{path / REF_NAME}: missing or unreadable; rerun the stage that made the policy.") from None
    if ref.sha256 != found:
        raise UserError(
            f"{path}: its files hash to {found}, {REF_NAME} says {ref.sha256}; rerun the stage that made the policy."
        )
    return ref


def _digest(path: Path) -> str:
    """sha256 over the names and hashes of the files that make the policy."""
    require_weights(path)
    deciding = sorted({file for pattern in DECIDING for file in path.glob(pattern) if file.is_file()})
    listing = "".join(f"{file.name} {files.sha256(file)}\n" for file in deciding)
    return hashlib.sha256(listing.encode()).hexdigest()


def require_weights(path: Path) -> None:
    """Raise `UserError` unless the directory holds weights."""
    if not any(path.glob(WEIGHTS)):
        raise UserError(f"{path}: policy directory without weights; put model.safetensors there or rerun its stage.")
