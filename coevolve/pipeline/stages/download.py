"""A file that the kit may not redistribute, fetched to `data/mirror/<source>/` once and checked by its sha256."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve.config.restriction import digest
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import Stage


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write the file of the job's source; the folder of COEVOLVE_MIRROR is tried before the network."""
    from coevolve.assets import downloads

    name = job.wildcards["source"]
    source = job.suite.sources[name]
    folder = downloads.mirror()
    if folder and (folder / name / source.file).is_file():
        folder /= name
    downloads.fetch(source, out / source.file, folder, job.work)
    return {"licence": source.licence, "sha256": source.sha256}


STAGE = Stage(
    help="Fetch a file, pinned by sha256, once for all suites.",
    run=run,
    reads=("sources",),
    files=(),  # each file has a job, so the provenance in their folder belongs to none
    pin=lambda config, wildcards: f"{digest(config)}-",  # the content of a pinned file does not depend on code
    image="",
)
