"""A policy on disk: a directory in transformers' format with a `policy.json`.

A policy is identified by the sha256 over the files that determine its output. Other files in the directory (optimiser
states, logs, provenance) do not count.
"""

import hashlib
from pathlib import Path

from pydantic import ValidationError

from coevolve.errors import UserError
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
    """The content of `policy.json`; raises `UserError` unless the files hash to its sha256."""
    actual = digest(path)
    ref = read_ref(path / REF_NAME)
    if ref.sha256 != actual:
        raise UserError(
            f"{path}: its files hash to {actual}, but {REF_NAME} has {ref.sha256};"
            " rerun the stage that made the policy."
        )
    return ref


def read_ref(path: Path) -> PolicyRef:
    """The content of a `policy.json`; raises `UserError` if it is missing or invalid."""
    try:
        return PolicyRef.from_json(files.read_bytes(path) if path.exists() else b"")
    except ValidationError:
        raise UserError(f"{path}: missing or unreadable; rerun the stage that made the policy.") from None


def digest(path: Path) -> str:
    """sha256 over the names and hashes of the files that match `HASHED`."""
    require_weights(path)
    hashed = sorted({file for pattern in HASHED for file in path.glob(pattern) if file.is_file()})
    listing = "".join(f"{file.name} {files.sha256(file)}\n" for file in hashed)
    return hashlib.sha256(listing.encode()).hexdigest()


def require_weights(path: Path) -> None:
    """Raise `UserError` unless the directory has weights."""
    if mark := pruned.read(path):
        raise UserError(f"{path}: its weights were deleted after their last use; `{mark.remake}` makes them again.")
    if not any(path.glob(WEIGHTS)):
        raise UserError(f"{path}: policy directory without weights; put model.safetensors there or rerun its stage.")
