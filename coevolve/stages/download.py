"""A file that the kit may not redistribute, fetched to `data/mirror/<source>/` once and checked by its sha256."""

from pathlib import Path
from typing import Any

from coevolve.assets import downloads
from coevolve.run.job import Job


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write the file of the job's source; the folder of COEVOLVE_MIRROR is tried before the network."""
    name = job.wildcards["source"]
    source = job.suite.sources[name]
    folder = downloads.mirror()
    if folder and (folder / name / source.file).is_file():
        folder /= name
    downloads.fetch(source, out / source.file, folder, job.work)
    return {"licence": source.licence, "sha256": source.sha256}
