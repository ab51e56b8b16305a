"""A finished suite's products in one folder: tables, figures and texts, evaluated episodes, provenance, and a page."""

import json
import lzma
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from coevolve.errors import UserError
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.registry import ENDS, STAGES
from coevolve.pipeline.stage import PlannedJob
from coevolve.records.evaluation import EvalRecord
from coevolve.records.provenance import Provenance
from coevolve.report import drawing, html, job_history, training_figure
from coevolve.report.claims import Claims
from coevolve.report.html import PageFiles, RunSettings
from coevolve.storage import files, folders, jsonl, provenance

PAGE = "report.html"
#: As compressed JSON lines: the provenance of every job, and the records of every evaluation.
JOBS, RECORDS = "jobs.jsonl.xz", "records.jsonl.xz"
_WRITTEN = {PAGE, JOBS, RECORDS, provenance.NAME}


def export(plan: Plan, out: Path, claims: Claims, ablation: str | None = None) -> list[str]:
    """Write the folder `out`, replacing an earlier export; returns the names of its files.

    The files are those of the suite's products and of its pools of tasks, or of one ablation. The records of all
    evaluations come with them, from which means and intervals can be computed again.

    Raises `UserError` for a product that is missing, was changed, or was made with other settings than the suite's,
    and if `out` is no export or has other files.
    """
    if out.exists() and not (out / PAGE).exists():
        raise UserError(f"{out}: exists and is not an export; give another --out or remove it.")
    if Path(plan.home).resolve() in (out.resolve(), *out.resolve().parents):
        raise UserError(f"{out}: is in the suite's own results; give another --out.")
    table = plan.products["table1"] if ablation is None else plan.ablation(ablation)
    shown = [*plan.products.values()] if ablation is None else [table]
    products = [path for job in shown for path in _products(plan, job)]
    jobs = _jobs(plan, products)
    named = {name for stage in (*ENDS, "task_growth", "ablation") for name in STAGES[stage].files}  # of any suite
    with folders.named_directory(out, _WRITTEN | named) as folder:
        for path in products:
            shutil.copyfile(path, folder / path.name)
        shutil.copyfile(table[provenance.NAME], folder / provenance.NAME)
        _write_lines(folder / JOBS, (job.to_json() for job in jobs))
        _write_lines(folder / RECORDS, _records(Path(plan.home), jobs))
        write_page(folder, claims)
    return sorted(path.name for path in out.iterdir())


def write_page(folder: Path, claims: Claims) -> None:
    """Write the page of an export from the folder's own files; raises `UserError` if the settings are missing."""
    settings = provenance.read(folder / provenance.NAME)
    jobs = _read_jobs(folder / JOBS)
    try:
        run = RunSettings.model_validate(settings.config)
    except ValidationError:
        problem = "has no settings of a table, or those of another version of the kit"
        raise UserError(f"{folder / provenance.NAME}: {problem}; export the suite again.") from None
    curves = list(training_figure.trainings(jobs.values()))
    if curves and not (folder / training_figure.NAME).exists():
        drawing.write(folder / training_figure.NAME, lambda: training_figure.draw(curves, run.labels))
    paths = [path for path in folder.iterdir() if path.name not in _WRITTEN and not path.name.startswith(".")]
    provenance.check(settings, {path: files.sha256(path) for path in paths if path.name in settings.outputs})
    page = PageFiles(paths, view="", flat=True, jobs=JOBS)
    text = html.report(page, run, claims, jobs or {settings.result: settings})
    files.write_bytes(folder / PAGE, text.encode())


def _products(plan: Plan, job: PlannedJob) -> list[Path]:
    """The files of a product or ablation that an export holds; raises as `export`."""
    folder, paths = Path(job.folder), [*map(Path, job.files)]
    if missing := next((path for path in paths if not path.is_file()), None):
        raise UserError(f"{missing}: no such file; run the suite to its end first.")
    record, products = provenance.read(folder / provenance.NAME), [path for path in paths if _is_exported(path)]
    provenance.check(record, {path: files.sha256(path) for path in products})
    if "settings" in plan.changed_since(record):
        raise UserError(f"{folder}: made with other settings than the suite's; run the suite again.")
    return products


def _is_exported(path: Path) -> bool:
    """An export's page is written anew, and a LaTeX table holds what the JSON beside it does."""
    return path.name != PAGE and path.suffix != ".tex"


def _jobs(plan: Plan, products: Iterable[Path]) -> list[Provenance]:
    """The provenance of the suite's jobs that the products are made of, in the order in which they started."""
    given = {path.parent for path in products}
    behind = plan.jobs([str(path) for path in products])
    folders = [Path(job.folder) for job in behind if not job.stage.shared]
    records = [folder / provenance.NAME for folder in folders if folder not in given]
    return list(job_history.read(path for path in records if path.exists()).values())


def _records(home: Path, jobs: Iterable[Provenance]) -> Iterator[str]:
    """Each record of the evaluations as a JSON line, with the `result` of its job."""
    for job in jobs:
        if "records.jsonl" in job.outputs:
            for record in jsonl.stream(provenance.checked(home / job.result / "records.jsonl"), EvalRecord):
                yield json.dumps({"result": job.result, **record.model_dump(mode="json")})


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    files.write_bytes(path, lzma.compress("".join(f"{line}\n" for line in lines).encode(), preset=9))


def _read_jobs(path: Path) -> Mapping[str, Provenance]:
    """The jobs by the folder of their result; none without a file. Raises `UserError` if it is damaged."""
    if not path.exists():
        return {}
    try:
        jobs = [Provenance.from_json(line) for line in lzma.decompress(files.read_bytes(path)).splitlines()]
    except (lzma.LZMAError, ValidationError):
        raise UserError(f"{path}: damaged, or of another version of the kit; export the suite again.") from None
    return {job.result: job for job in jobs}
