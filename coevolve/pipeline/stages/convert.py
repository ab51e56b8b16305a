"""A model in a GGUF file, dequantised to `data/mirror/converted/<name>/` once, with a manifest of sha256s."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coevolve.config.restriction import digest
from coevolve.errors import UserError
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import Stage
from coevolve.storage import files


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write the model in transformers' format; raises `UserError` unless file and weights have the config's sha256s."""
    from coevolve.assets import hub
    from coevolve.train import gguf_model

    key, gguf = f"models.{job.wildcards['model']}.gguf", job.model.gguf
    if gguf is None:
        raise UserError(f"`{key}` is not set: this model needs no stage `convert`.")
    gguf_model.convert(files.verified(job.file("gguf"), gguf.sha256, key), out)
    manifest = hub.write_manifest(out, gguf.path, gguf.sha256, hub.policy_files(out))
    weights = {file.name: file.sha256 for file in manifest.files}["model.safetensors"]
    if weights != gguf.weights_sha256:
        raise UserError(
            f"{gguf.path}: the weights have sha256 {weights}, but `{key}.weights_sha256` is {gguf.weights_sha256};"
            " install the versions of requirements.lock or correct the key."
        )
    return {"bytes": sum(file.bytes for file in manifest.files), "files": len(manifest.files)}


def pinned_gguf(config: Mapping[str, Any], wildcards: Mapping[str, str]) -> str:
    """Digest of a GGUF file's pin and of the weights' in it."""
    gguf = config["models"][wildcards["model"]]["gguf"]
    return digest(gguf and [gguf["sha256"], gguf["weights_sha256"]])


STAGE = Stage(
    help="Dequantise a model in a GGUF file into a folder in transformers' format, once for all suites.",
    run=run,
    reads=("models",),
    files=("manifest.json",),
    pin=pinned_gguf,
    image="train",
)
