"""A policy on disk: a directory in transformers' format, and beside the weights a `policy.json` that names them.

The name of a policy is the sha256 over the files that decide what it says. Whatever else lies in the directory
(optimiser states, logs, provenance) does not count.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from coevolve import store
from coevolve.checkpoint import DECIDING, WEIGHTS
from coevolve.errors import UserError
from coevolve.types import PolicyRef

REF_NAME = "policy.json"


def seal(path: Path, name: str, base: str, revision: str) -> PolicyRef:
    """Name the weights in `path`: writes `policy.json` and returns what it says."""
    ref = PolicyRef(name=name, sha256=_digest(path), base=base, revision=revision)
    store.write_bytes(path / REF_NAME, ref.to_json().encode() + b"\n")
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


def load_model(path: Path, dtype: torch.dtype | str = "auto") -> Any:
    """The model, ready to act; `dtype` "auto" is the one its weights were saved in."""
    _check_weights(path)
    transformers_logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True, attn_implementation="sdpa")
    return model.eval()


def load_tokenizer(path: Path) -> Any:
    """The tokenizer, with the chat template that lies beside it."""
    return AutoTokenizer.from_pretrained(path, local_files_only=True)


def _digest(path: Path) -> str:
    """sha256 over the names and hashes of the files that make the policy."""
    _check_weights(path)
    files = sorted({file for pattern in DECIDING for file in path.glob(pattern) if file.is_file()})
    listing = "".join(f"{file.name} {store.sha256(file)}\n" for file in files)
    return hashlib.sha256(listing.encode()).hexdigest()


def _check_weights(path: Path) -> None:
    if not any(path.glob(WEIGHTS)):
        raise UserError(f"{path}: policy directory without weights; put model.safetensors there or rerun its stage.")
