"""Runs a job from its file: its outputs appear as a whole or not at all, together with their provenance."""

import contextlib
import importlib
import logging
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coevolve.config.restriction import digest, part_of
from coevolve.envs.section import distributions
from coevolve.errors import UserError
from coevolve.pipeline import devices
from coevolve.pipeline.job import Job
from coevolve.pipeline.job_file import PLAN_ANEW, JobFile
from coevolve.pipeline.launch import LaunchedProcess, errors_to_launcher
from coevolve.pipeline.reuse import take
from coevolve.pipeline.stage import work_folder
from coevolve.records.provenance import Notes, Provenance
from coevolve.storage import code_digest, files, folders, locks, origin, provenance

log = logging.getLogger(__name__)
#: `run` of a stage.
Run = Callable[[Job, Path], Notes]


def execute(planned: JobFile, threads: int, *, reuse: bool = False) -> None:
    """Run a job, and write its files and `provenance.json` to its folder `out`.

    A job resumes from the checkpoints and journals of a killed job with the same fingerprint (config, code, inputs,
    launch). Of several processes only the first writes; all take part in the computation. With `reuse`, another suite's
    result of an equal job is taken instead (`coevolve.pipeline.reuse`), and no code of the stage is imported.

    Raises `UserError` for an input that does not exist or is not as its stage wrote it or as its pin says, for code
    that is not as it was planned, and for an `out` that holds anything else than a result of this stage.
    """
    process, out = LaunchedProcess.current(), Path(planned.out)
    scratch = work_folder(out)
    with errors_to_launcher():
        job, record = _checked(planned, threads)
        if process.rank:
            _run_other_rank(_loaded(planned), job, process)
            return
        with _result_lock(scratch) as waited:
            # Processes of one launch start together, so the first must not skip the work that the others do.
            made = waited and process.world_size == 1 and _is_made(record, out)
            if not made and not (reuse and _is_taken(planned, record, out)):
                run = _loaded(planned)
                for leftover in files.temporary_names(out):  # of a killed job, on a disk whose folders have no locks
                    shutil.rmtree(leftover, ignore_errors=True)
                _make(run, job, process, record, out)
            shutil.rmtree(scratch, ignore_errors=True)


def reuse_before_launch(planned: JobFile) -> bool:
    """Take another suite's result before several processes start, as `execute` does; returns whether there is one."""
    out = Path(planned.out)
    scratch = work_folder(out)
    _, record = _checked(planned, threads=1)
    with _result_lock(scratch):
        taken = _is_taken(planned, record, out)
        if taken:
            shutil.rmtree(scratch, ignore_errors=True)
    return taken


def _checked(planned: JobFile, threads: int) -> tuple[Job, dict[str, Any]]:
    """The job, and its provenance as far as it is known before it runs; raises `UserError` if it must not run."""
    out = Path(planned.out)
    inputs = {name: [Path(path) for path in paths] for name, paths in planned.inputs.items()}
    for name, paths in inputs.items():
        for path in paths:
            if not path.is_file():
                raise UserError(f"{path}: input `{name}` does not exist; run the stage that makes it.")
    require_replaceable(planned)
    if not _is_planned_code(planned):
        raise UserError(f"stage `{planned.stage}`: its code changed after the run was planned; {PLAN_ANEW}.")
    hashes = {str(path): files.sha256(path) for paths in inputs.values() for path in paths}
    _check_contents(planned, hashes)
    contents = {name: [hashes[path] for path in paths] for name, paths in planned.inputs.items()}
    # Checkpoints are divided over the processes of a launch, so another launch cannot use them.
    fingerprint = digest([planned.fingerprint, contents, planned.wildcards, LaunchedProcess.current().note])
    job = Job(
        stage=planned.stage,
        suite=part_of(planned.settings),
        inputs=inputs,
        wildcards=planned.wildcards,
        work=work_folder(out) / fingerprint,
        threads=threads,
        results=planned.results,
        devices=planned.vllm,
        branch=planned.branch,
    )
    return job, planned.identity(hashes)


def _is_taken(planned: JobFile, record: dict[str, Any], out: Path) -> bool:
    """Whether another suite's result is now in `out`; the caller holds the lock of the result."""
    return planned.reusable and take(record, out, [*planned.files, provenance.NAME])


def _is_made(record: dict[str, Any], out: Path) -> bool:
    """Whether the result exists: the process that held the lock before has made it."""
    made = provenance.if_valid(out / provenance.NAME)
    compared = ("config_digest", "code_digest", "inputs")
    same = made is not None and all(getattr(made, name) == record[name] for name in compared)
    if same:
        log.info("%s: another process has made it; nothing is left to do.", out)
    return same


def _make(run: Run, job: Job, process: LaunchedProcess, record: dict[str, Any], out: Path) -> None:
    """Run the job's stage and move its result to `out`; returns once every other rank has run it, too."""
    job.work.mkdir(parents=True, exist_ok=True)
    if process.launch_id:
        (job.work / process.launch_id).touch()
    started, clock, cpu = datetime.now(UTC), time.monotonic(), sum(os.times()[:4])
    with folders.directory(out) as folder:
        notes = _run(run, job, folder) | process.note
        envs = job.suite.envs.values() if "envs" in record["config"] else ()
        commit, dirty = origin.repository()
        made = Provenance(
            **record,
            commit=commit,
            dirty=dirty,
            versions=origin.versions(distributions(env.kind for env in envs)),
            container=origin.container(),
            hardware=devices.hardware(),
            slurm_job=os.environ.get("SLURM_JOB_ID"),
            outputs={path.name: files.sha256(path) for path in sorted(folder.iterdir())},
            notes=notes,
            started=started.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - clock, 3),
            cpu_seconds=round(sum(os.times()[:4]) - cpu, 3),  # user and system, of this process and its ended children
        )
        files.write_bytes(folder / provenance.NAME, made.model_dump_json(indent=2).encode() + b"\n")
    for rank in range(1, process.world_size):  # a stage without a collective operation does not wait for them
        _wait_for(job.work / f"{process.launch_id}-{rank}")


def _run_other_rank(run: Run, job: Job, process: LaunchedProcess) -> None:
    """Run the job's stage as a rank above 0, once rank 0 has started; the files that this rank writes are deleted."""
    logging.getLogger("coevolve").setLevel(logging.WARNING)  # the first process reports the progress
    _wait_for(job.work / process.launch_id)
    with tempfile.TemporaryDirectory() as unused:
        _run(run, job, Path(unused))
    (job.work / f"{process.launch_id}-{process.rank}").touch()


def _wait_for(path: Path) -> None:
    """Return once another rank has written the file."""
    while not path.exists():
        time.sleep(0.1)


def _run(run: Run, job: Job, folder: Path) -> dict[str, Any]:
    """Run the job's stage; returns its notes as JSON data."""
    try:
        notes = run(job, folder)
    except SystemExit as ended:  # of an environment's package: its status 0 would look like success
        last = traceback.extract_tb(ended.__traceback__)[-1]
        problem = f"{last.filename}:{last.lineno} ended the process before there was a result"
        names = ", ".join(f"{name}={value}" for name, value in job.wildcards.items())
        raise UserError(f"stage `{job.stage}` with {names}: {problem}; raise an error there instead.") from None
    return notes if isinstance(notes, dict) else notes.model_dump(mode="json")


def require_replaceable(planned: JobFile) -> None:
    """Raise `UserError` unless `out` is new, empty or a result of this stage, which the job replaces as a whole.

    Snakemake deletes the `provenance.json` of a result before its job runs, but not the other files. So the job's own
    folder in the suite's results may lack it.
    """
    out = Path(planned.out)
    if not out.name or out.name == "..":
        raise UserError(f"--out {out}: name a new folder for the results.")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UserError(f"--out {out}: exists and is not a folder; name another folder, or remove it.")
    if not out.is_dir() or not any(out.iterdir()):
        return
    made = provenance.if_valid(out / provenance.NAME)
    is_planned_folder = out.resolve() == Path(planned.folder).resolve()
    if (made is None and not is_planned_folder) or (made is not None and made.stage != planned.stage):
        raise UserError(
            f"--out {out}: stage `{planned.stage}` did not write these files; name another folder or empty it."
        )


def _loaded(planned: JobFile) -> Run:
    """The `run` of the job's stage, with all its code imported before an edit reaches it.

    Raises `UserError` if the code is not that of its digest any more.
    """
    is_planned = False
    with contextlib.suppress(OSError, SyntaxError):  # while an editor writes
        for module in sorted({code_digest.split(name)[0] for name in code_digest.reachable(*planned.starts)}):
            with contextlib.suppress(ImportError):  # of a package that is not installed: left to the code that uses it
                importlib.import_module(module)
        code_digest.forget()
        is_planned = _is_planned_code(planned)
    if not is_planned:
        raise UserError(f"stage `{planned.stage}`: its code changed while the job started; {PLAN_ANEW}.")
    module, function = code_digest.split(planned.starts[0])
    run: Run = getattr(importlib.import_module(module), function)
    return run


def _is_planned_code(planned: JobFile) -> bool:
    """Whether the source files have the code that the plan read; of what is pinned, any code fetches the same."""
    with contextlib.suppress(OSError, SyntaxError):
        return planned.pinned or code_digest.code_digest(*planned.starts) == planned.code_digest
    return False


def _check_contents(planned: JobFile, hashes: dict[str, str]) -> None:
    """Raise `UserError` unless each input has the sha256 of its pin in the config, or of the provenance beside it.

    The files of other jobs must have one.
    """
    folders: dict[Path, dict[Path, str]] = {}
    for name, sha256 in hashes.items():
        path = Path(name)
        if pin := planned.pins.get(name):
            if sha256 != pin.sha256:
                problem = f"sha256 is {sha256}, but `{pin.key}.sha256` is {pin.sha256}"
                raise UserError(f"{path}: {problem}; fetch it again or correct the key.")
        elif path.name != provenance.NAME:
            folders.setdefault(path.parent, {})[path] = sha256
    prepared = {Path(path).parent for path in planned.inputs.get("prepared", [])}
    for folder, known in folders.items():
        path = next(iter(known))
        record = provenance.of_file(path)
        if record:
            provenance.check(record, (_contents(folder, record) if folder in prepared else {}) | known)
        elif str(path) in planned.made:
            raise UserError(f"{path}: no {provenance.NAME} beside it; delete {path} and run the same command again.")


def _contents(folder: Path, record: Provenance) -> dict[Path, str]:
    """sha256 of all outputs in a folder, several at once; jobs read every file of a prepared folder."""
    paths = [folder / name for name in record.outputs]
    with ThreadPoolExecutor() as threads:
        hashed = threads.map(lambda path: files.sha256(path) if path.exists() else "missing", paths)
        return dict(zip(paths, hashed, strict=True))


@contextlib.contextmanager
def _result_lock(scratch: Path) -> Iterator[bool]:
    """Hold the folder's lock; gives whether another process held it before.

    A job can outlive its killed scheduler; the restarted job then waits for it.
    """
    lock = locks.ProcessLock(scratch / "lock")
    waited = not lock.acquire()
    if waited:
        log.warning("%s: another process is making this result; waiting for it.", scratch)
        lock.acquire(wait=True)
    try:
        yield waited
    finally:
        lock.release()
