"""Runs a job: its outputs appear as a whole or not at all, together with their provenance."""

import contextlib
import importlib
import logging
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coevolve.config.kinds import distributions
from coevolve.config.restriction import as_dict, digest
from coevolve.errors import UserError, suggestion
from coevolve.pipeline import devices
from coevolve.pipeline.job import Job
from coevolve.pipeline.launch import LaunchedProcess, errors_to_launcher
from coevolve.pipeline.layout import work_folder
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.registry import STAGES
from coevolve.pipeline.required_files import required_files
from coevolve.pipeline.reuse import take
from coevolve.pipeline.stage import Inputs, files_by_name, results_by_name
from coevolve.records.provenance import Notes, Provenance
from coevolve.storage import code_digest, files, folders, locks, origin, provenance

log = logging.getLogger(__name__)
_PLAN_ANEW = "run the same snakemake command again, which plans it anew"


def execute(
    plan: Plan,
    stage: str,
    wildcards: dict[str, str],
    inputs: Inputs,
    out: Path,
    threads: int,
    planned: str = "",
    *,
    reuse: bool = False,
) -> None:
    """Run `stage` and write its files and `provenance.json` to the folder `out`.

    A job resumes from the checkpoints and journals of a killed job with the same fingerprint (config, code, inputs,
    launch). Of several processes only the first writes; all take part in the computation. `planned` is the fingerprint
    that the scheduler's plan has for the job, empty if a person starts it. With `reuse`, another suite's result of an
    equal job is taken instead (`coevolve.pipeline.reuse`), and no code of the stage is imported.

    Raises `UserError` for a missing wildcard, for an input that does not exist, that the stage does not read or that is
    not as its stage wrote it or as its pin says, if the job's fingerprint is not the planned one, and for an `out` that
    holds anything else than a result of this stage.
    """
    process, scratch = LaunchedProcess.current(), work_folder(out)
    with errors_to_launcher():
        job, record = _checked(plan, stage, wildcards, inputs, out, planned, threads)
        if process.rank:
            _load_code(plan, stage, wildcards)
            _run_other_rank(job, process)
            return
        with _result_lock(scratch) as waited:
            # Processes of one launch start together, so the first must not skip the work that the others do.
            made = waited and process.world_size == 1 and _is_made(record, out)
            if not made and not (reuse and _is_taken(record, out)):
                _load_code(plan, stage, wildcards)
                for leftover in files.temporary_names(out):  # of a killed job, on a disk whose folders have no locks
                    shutil.rmtree(leftover, ignore_errors=True)
                _make(job, process, record, out)
            shutil.rmtree(scratch, ignore_errors=True)


def inputs(plan: Plan, stage: str, wildcards: dict[str, str], given: Sequence[tuple[str, str]], planned: str) -> Inputs:
    """The inputs of a job: the files that were `given` by name, or else those of the plan.

    `planned` is the digest of the planned files' names, empty if a person starts the job. Raises `UserError` if it is
    another one now, and for given files of an input whose files are known by what they are results of.
    """
    _check_wildcards(plan, stage, wildcards)
    if not given:
        made = plan.inputs(stage, wildcards)
        if planned and digest(files_by_name(made)) != planned:
            raise UserError(f"stage `{stage}`: its inputs changed after the run was planned; {_PLAN_ANEW}.")
        return made
    files_given: dict[str, list[str]] = {}
    for name, path in given:
        files_given.setdefault(name, []).append(path)
    for name in results_by_name(plan.inputs(stage, wildcards)).keys() & files_given:
        raise UserError(f"stage `{stage}`: `{name}` are results of a suite; name their folder by --root.")
    return {**files_given}


def reuse_before_launch(
    plan: Plan, stage: str, wildcards: dict[str, str], inputs: Inputs, out: Path, planned: str
) -> bool:
    """Take another suite's result before several processes start, as `execute` does; returns whether there is one."""
    scratch = work_folder(out)
    _, record = _checked(plan, stage, wildcards, inputs, out, planned, threads=1)
    with _result_lock(scratch):
        taken = _is_taken(record, out)
        if taken:
            shutil.rmtree(scratch, ignore_errors=True)
    return taken


def job_of(plan: Plan, stage: str, wildcards: dict[str, str], inputs: Inputs, work: Path, threads: int) -> Job:
    """The job of a stage with these inputs."""
    files = {name: [Path(path) for path in paths] for name, paths in files_by_name(inputs).items()}
    results = results_by_name(inputs)
    return Job(stage, plan.restricted(stage, wildcards), files, wildcards, work, threads, results, plan.vllm)


def identity(plan: Plan, job: Job, inputs: Mapping[Path, str]) -> dict[str, Any]:
    """The provenance of a job as far as it is known before it runs, from the sha256 of each of its `inputs`."""
    config = as_dict(job.suite)
    return {
        "stage": job.stage,
        "wildcards": job.wildcards,
        "result": STAGES[job.stage].folder.format_map(job.wildcards),
        "config": config,
        "config_digest": digest(config),
        "code_digest": plan.code(job.stage, job.wildcards),
        "protocol": plan.suite.protocol,
        "seeds": {"suite": job.branch.seed, "job": job.seed} if "branch" in job.wildcards else {},
        "inputs": {str(path): sha256 for path, sha256 in inputs.items()},
    }


def _is_taken(record: dict[str, Any], out: Path) -> bool:
    """Whether another suite's result is now in `out`; the caller holds the lock of the result."""
    declared = STAGES[record["stage"]]
    return declared.reusable and take(record, out, declared.outputs)


def _checked(
    plan: Plan, stage: str, wildcards: dict[str, str], given: Inputs, out: Path, planned: str, threads: int
) -> tuple[Job, dict[str, Any]]:
    """The job, and its provenance as far as it is known before it runs; raises `UserError` if it must not run."""
    inputs = {name: [Path(path) for path in paths] for name, paths in files_by_name(given).items()}
    _check(plan, stage, wildcards, inputs)
    _require_replaceable(plan, stage, wildcards, out)
    _require_planned(plan, stage, wildcards, planned)
    hashes = {path: files.sha256(path) for paths in inputs.values() for path in paths}
    _check_contents(plan, inputs, hashes, bool(planned))
    contents = {name: [hashes[path] for path in paths] for name, paths in inputs.items()}
    # Checkpoints are divided over the processes of a launch, so another launch cannot use them.
    fingerprint = digest([plan.fingerprint(stage, wildcards), contents, wildcards, LaunchedProcess.current().note])
    job = job_of(plan, stage, wildcards, given, work_folder(out) / fingerprint, threads)
    workload = None
    with contextlib.suppress(UserError):  # without `expected` there is no estimate, and only a cost report needs one
        workload = plan.workload(stage, wildcards)
    return job, identity(plan, job, hashes) | {"workload": workload}


def _is_made(record: dict[str, Any], out: Path) -> bool:
    """Whether the result exists: the process that held the lock before has made it."""
    made = provenance.if_valid(out / provenance.NAME)
    compared = ("config_digest", "code_digest", "inputs")
    same = made is not None and all(getattr(made, name) == record[name] for name in compared)
    if same:
        log.info("%s: another process has made it; nothing is left to do.", out)
    return same


def _make(job: Job, process: LaunchedProcess, record: dict[str, Any], out: Path) -> None:
    """Run the job's stage and move its result to `out`; returns once every other rank has run it, too."""
    job.work.mkdir(parents=True, exist_ok=True)
    if process.launch_id:
        (job.work / process.launch_id).touch()
    started, clock, cpu = datetime.now(UTC), time.monotonic(), sum(os.times()[:4])
    with folders.directory(out) as folder:
        notes = _run(job, folder) | process.note
        envs = job.suite.envs.values() if "envs" in STAGES[job.stage].reads else ()
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


def _run_other_rank(job: Job, process: LaunchedProcess) -> None:
    """Run the job's stage as a rank above 0, once rank 0 has started; the files that this rank writes are deleted."""
    logging.getLogger("coevolve").setLevel(logging.WARNING)  # the first process reports the progress
    _wait_for(job.work / process.launch_id)
    with tempfile.TemporaryDirectory() as unused:
        _run(job, Path(unused))
    (job.work / f"{process.launch_id}-{process.rank}").touch()


def _wait_for(path: Path) -> None:
    """Return once another rank has written the file."""
    while not path.exists():
        time.sleep(0.1)


def _run(job: Job, folder: Path) -> dict[str, Any]:
    """Run the job's stage; returns its notes as JSON data."""
    try:
        notes: Notes = importlib.import_module(STAGES[job.stage].module).run(job, folder)
    except SystemExit as ended:  # of an environment's package: its status 0 would look like success
        last = traceback.extract_tb(ended.__traceback__)[-1]
        problem = f"{last.filename}:{last.lineno} ended the process before there was a result"
        names = ", ".join(f"{name}={value}" for name, value in job.wildcards.items())
        raise UserError(f"stage `{job.stage}` with {names}: {problem}; raise an error there instead.") from None
    return notes if isinstance(notes, dict) else notes.model_dump(mode="json")


def _check_wildcards(plan: Plan, stage: str, wildcards: dict[str, str]) -> None:
    """Raise `UserError` unless the suite has a job of the stage with these wildcards."""
    for name in STAGES[stage].wildcards:
        if name not in wildcards:
            raise UserError(f"stage `{stage}`: which {name}? Give --on {name}=NAME.")
    known = STAGES[stage].known_wildcards
    if unknown := [name for name in wildcards if name not in known]:
        hint = suggestion(unknown[0], known)
        taken = ", ".join(known) or "none"
        raise UserError(f"stage `{stage}`: --on {unknown[0]}=...: it takes {taken}{hint or '; leave it out.'}")
    if not plan.has_job(stage, wildcards):
        given = ", ".join(f"{name}={value}" for name, value in wildcards.items())
        raise UserError(f"stage `{stage}`: suite `{plan.suite.suite}` has no job with {given}; correct --on.")


def _check(plan: Plan, stage: str, wildcards: dict[str, str], inputs: dict[str, list[Path]]) -> None:
    """Raise `UserError` unless the suite has the job, and it reads the inputs."""
    _check_wildcards(plan, stage, wildcards)
    readable = plan.input_names(stage, wildcards)
    for name, paths in inputs.items():
        if name not in readable:
            hint = suggestion(name, readable) or f"; it reads {', '.join(readable) or 'no file'}."
            raise UserError(f"stage `{stage}` has no input `{name}`{hint}")
        for path in paths:
            if not path.is_file():
                raise UserError(f"{path}: input `{name}` does not exist; run the stage that makes it.")


def _require_replaceable(plan: Plan, stage: str, wildcards: dict[str, str], out: Path) -> None:
    """Raise `UserError` unless `out` is new, empty or a result of this stage, which the job replaces as a whole.

    Snakemake deletes the `provenance.json` of a result before its job runs, but not the other files. So the job's own
    folder in the suite's results may lack it.
    """
    if not out.name or out.name == "..":
        raise UserError(f"--out {out}: name a new folder for the results.")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UserError(f"--out {out}: exists and is not a folder; name another folder, or remove it.")
    if not out.is_dir() or not any(out.iterdir()):
        return
    made = provenance.if_valid(out / provenance.NAME)
    in_layout = out.resolve() == Path(plan.folder(stage, wildcards)).resolve()
    if (made is None and not in_layout) or (made is not None and made.stage != stage):
        raise UserError(f"--out {out}: stage `{stage}` did not write these files; name another folder or empty it.")


def _require_planned(plan: Plan, stage: str, wildcards: dict[str, str], planned: str) -> None:
    """Raise `UserError` if the job's fingerprint is not the planned one."""
    fingerprint = plan.fingerprint(stage, wildcards)
    if planned and fingerprint != planned:
        (config, _, code), (old_config, _, old_code) = fingerprint.partition("-"), planned.partition("-")
        changed = [name for name, same in (("settings", config == old_config), ("code", code == old_code)) if not same]
        raise UserError(
            f"stage `{stage}`: its {' and '.join(changed)} changed after the run was planned; {_PLAN_ANEW}."
        )


def _load_code(plan: Plan, stage: str, wildcards: dict[str, str]) -> None:
    """Import the job's code before an edit reaches it; raises `UserError` if it is not that of its digest any more."""
    modules = plan.modules(stage, wildcards)
    code_digest.load(*modules)
    if not code_digest.is_current(*modules):
        raise UserError(f"stage `{stage}`: its code changed while the job started; {_PLAN_ANEW}.")


def _check_contents(plan: Plan, inputs: dict[str, list[Path]], hashes: dict[Path, str], planned: bool) -> None:
    """Raise `UserError` unless each input has the sha256 of its pin in the config, or of the provenance beside it.

    A planned job reads the files of other jobs, so a missing provenance is an error, too.
    """
    pins = {Path(file.path): file for file in required_files(plan.suite) if file.sha256}
    folders: dict[Path, dict[Path, str]] = {}
    for path, sha256 in hashes.items():
        if pin := pins.get(path):
            if sha256 != pin.sha256:
                problem = f"sha256 is {sha256}, but `{pin.key}.sha256` is {pin.sha256}"
                raise UserError(f"{path}: {problem}; fetch it again or correct the key.")
        elif path.name != provenance.NAME:
            folders.setdefault(path.parent, {})[path] = sha256
    prepared = {path.parent for path in inputs.get("prepared", [])}
    for folder, known in folders.items():
        path = next(iter(known))
        record = provenance.of_file(path)
        if record:
            provenance.check(record, (_contents(folder, record) if folder in prepared else {}) | known)
        elif planned and plan.leaves_provenance(str(path)):
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
