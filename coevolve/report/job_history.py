"""The jobs behind a result, from the provenance files that a report is given."""

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from coevolve.errors import UserError
from coevolve.records.provenance import Provenance
from coevolve.storage import provenance


def read(paths: Iterable[Path]) -> dict[str, Provenance]:
    """The jobs of `provenance.json` files by the folder of their result below the suite's, in the order of their start.

    Raises `UserError` for a file that is no provenance of this version, and for two files of one job.
    """
    jobs: dict[str, Provenance] = {}
    for path in paths:
        record = provenance.read(path)
        if not record.result:
            raise UserError(f"{path}: an older version of the kit made it; rerun its stage.")
        if record.result in jobs:
            raise UserError(f"{path}: a second provenance of `{record.result}`; give each once.")
        jobs[record.result] = record
    return dict(sorted(jobs.items(), key=lambda item: (item[1].started, item[0])))


def behind(jobs: Mapping[str, Provenance], files: Iterable[Path]) -> list[Provenance]:
    """The jobs that make `files` or that they depend on; raises `UserError` if a file's provenance was not given."""
    waiting, seen = list[str](), set[str]()
    for file in files:
        folder = maker(jobs, file.as_posix())
        if folder is None:
            raise UserError(f"the provenance of `{file.parent}` was not given; give provenance=FILE.")
        waiting.append(folder)
    while waiting:
        folder = waiting.pop()
        if folder not in seen:
            seen.add(folder)
            waiting += filter(None, (maker(jobs, path) for path in jobs[folder].inputs))
    return [job for folder, job in jobs.items() if folder in seen]


def maker(jobs: Mapping[str, Provenance], path: str) -> str | None:
    """Which of the jobs, given by the folder of their result, made a file; None for a file from outside."""
    parts = PurePosixPath(path).parent.parts
    tails = ("/".join(parts[start:]) for start in range(len(parts)))
    return next((tail for tail in tails if tail in jobs), None)
