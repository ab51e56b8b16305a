"""What the products of a suite are made from, in one archive: episodes, pairs, records and provenance, no weights."""

import io
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from coevolve.errors import UserError
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.registry import REMADE
from coevolve.pipeline.stage import PlannedJob, files_by_name, files_of
from coevolve.storage import files, provenance

#: The empty file in a result's folder that says: what is here was unpacked, and may be a part of the result.
MARKER = ".evidence"


def write(plan: Plan, out: Path, evaluations: bool = False) -> list[str]:
    """Write the archive `out`, with paths as in the suite's results; returns these paths.

    Unpacked where a suite runs, it gives its products all that they need of other seeds or methods, which need no run
    there. With `evaluations` it has the episodes of evaluations too, from which their records can be made again. Raises
    `UserError` if a file is missing or differs from its provenance.
    """
    paths = evidence(plan, evaluations)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:xz", preset=9) as tar:
        for path in paths:
            content = _checked(Path(path))
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime = len(content), int(Path(path).stat().st_mtime)
            tar.addfile(entry, io.BytesIO(content))
            if entry.name.endswith(provenance.NAME):
                tar.addfile(tarfile.TarInfo(str(Path(path).with_name(MARKER))))
    files.write_bytes(out, archive.getvalue())
    return paths


def made_from_evidence(plan: Plan) -> list[PlannedJob]:
    """The jobs that need nothing but a suite's evidence: its products, and the tables of default ablations."""
    return [*plan.products.values(), *map(plan.ablation, plan.default_ablations())]


def require_same_settings(plan: Plan, targets: Sequence[str]) -> None:
    """Raises `UserError` if `targets` depend on unpacked results of other settings than the suite's.

    Those of other code are let pass: no job makes them again, as their weights are elsewhere.
    """
    for job in plan.jobs(targets):
        folder = Path(job.folder)
        if (folder / MARKER).exists() and "settings" in plan.changed_since(provenance.read(folder / provenance.NAME)):
            problem = "this evidence was made with other settings than the suite has now"
            raise UserError(f"{folder}: {problem}; give the settings of its run, or remove it.")


def evidence(plan: Plan, evaluations: bool) -> list[str]:
    """The files of the suite's jobs that its products read, and the provenance of each; like files side by side.

    And what `coevolve reverify` reads to make them again: the task lists, and the episodes of evaluations.
    """
    products = made_from_evidence(plan)
    read = {path for job in products for path in files_of(job.inputs)}
    of_products = {job.key for job in products}
    made = {path: job for path in read if (job := plan.job(path)) and job.key not in of_products}
    remade = {path: plan.job(path) for path in _remade_from(made.values(), evaluations)}
    made |= {path: job for path, job in remade.items() if job}
    records = {job[provenance.NAME] for job in made.values() if job.leaves_provenance}
    return sorted({*made, *records}, key=lambda path: (Path(path).name, path))


def _remade_from(jobs: Iterable[PlannedJob], evaluations: bool) -> Iterator[str]:
    """The files beside those of the jobs that say which tasks were played, and how they were evaluated."""
    for job in jobs:
        if job.stage.plays or job.stage.name in REMADE:
            names = files_by_name(job.inputs)
            yield from (path for name in ("tasks", "excluded_example", "experts") for path in names.get(name, ()))
        if evaluations and {"episodes.jsonl", "records.jsonl"} <= {*job.names}:
            yield job["episodes.jsonl"]


def _checked(path: Path) -> bytes:
    """The content of a result; raises as `write`."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; run the suite to its end first.")
    if path.name != provenance.NAME:
        provenance.checked(path)
    return files.read_bytes(path)
