"""A model of the hub at its pinned commit, fetched to `data/mirror/models/<name>/` once, with a manifest of sha256s."""

from pathlib import Path
from typing import Any

from coevolve.assets import downloads, hub
from coevolve.run.job import Job


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write the model's files; the folder of COEVOLVE_MIRROR is tried before the network."""
    model = job.model
    manifest = hub.fetch(str(model.hub), model.revision, out, job.work, downloads.mirror())
    return {"bytes": sum(file.bytes for file in manifest.files), "files": len(manifest.files)}
