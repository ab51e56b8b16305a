"""A model of the hub at its pinned commit, fetched to `data/mirror/models/<name>/` once, with a manifest of sha256s."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coevolve.config.restriction import digest
from coevolve.pipeline import work
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import Stage


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write the model's files; the folder of COEVOLVE_MIRROR is tried before the network."""
    from coevolve.assets import downloads, hub

    model = job.model
    manifest = hub.fetch(str(model.hub), model.revision, out, job.work, downloads.mirror())
    return {"bytes": sum(file.bytes for file in manifest.files), "files": len(manifest.files)}


def pinned_model(config: Mapping[str, Any], wildcards: Mapping[str, str]) -> str:
    """Digest of a model's pin."""
    model = config["models"][wildcards["model"]]
    return digest([model["hub"], model["revision"]])


STAGE = Stage(
    help="Fetch a model of the hub at its pinned commit, once for all suites.",
    run=run,
    reads=("models",),
    files=("manifest.json",),
    pin=pinned_model,
    cost=lambda suite, job: work.training_work(0),
    image="",
)
