"""Runs a stage so that its outputs appear whole or not at all, with their provenance beside them."""

from __future__ import annotations

import contextlib
import importlib
import logging
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coevolve import provenance, store
from coevolve.config import Suite, as_dict, digest
from coevolve.errors import UserError
from coevolve.plan import STAGES, Plan
from coevolve.stages.job import Job
from coevolve.types import Provenance

log = logging.getLogger(__name__)


def execute(
    suite: Suite, stage: str, wildcards: dict[str, str], inputs: dict[str, list[Path]], out: Path, threads: int
) -> None:
    """Run `stage` and leave its files and `provenance.json` in the directory `out`.

    Work that a killed run left behind under the same fingerprint (config, code, inputs) is taken up again.
    """
    plan = Plan(suite)
    _require(inputs)
    hashes = {name: [store.sha256(path) for path in paths] for name, paths in inputs.items()}
    fingerprint = digest([plan.fingerprint(stage, wildcards), hashes, wildcards])
    restricted = plan.restricted(stage, wildcards)
    scratch = out.parent / f".work-{out.name}"
    with _alone(scratch):
        job = Job(stage, restricted, inputs, wildcards, scratch / fingerprint, threads)
        job.work.mkdir(parents=True, exist_ok=True)
        started, clock = datetime.now(UTC), time.monotonic()
        with store.directory(out) as folder:
            notes = importlib.import_module(STAGES[stage].module).run(job, folder)
            code = plan.code(stage, wildcards)
            _write_provenance(folder, suite, job, code, hashes, notes, started, time.monotonic() - clock)
        shutil.rmtree(scratch)


def _write_provenance(
    folder: Path,
    suite: Suite,
    job: Job,
    code: str,
    hashes: dict[str, list[str]],
    notes: dict[str, Any],
    started: datetime,
    seconds: float,
) -> None:
    config = as_dict(job.suite)
    commit, dirty = provenance.repository()
    record = Provenance(
        stage=job.stage,
        config=config,
        config_digest=digest(config),
        code_digest=code,
        commit=commit,
        dirty=dirty,
        protocol=suite.protocol,
        seeds={"suite": job.branch.seed, "job": job.seed} if "branch" in job.wildcards else {},
        versions=provenance.versions(),
        container=provenance.container(),
        inputs={str(path): sha for name in hashes for path, sha in zip(job.inputs[name], hashes[name], strict=True)},
        outputs={path.name: store.sha256(path) for path in sorted(folder.iterdir())},
        notes=notes,
        started=started.isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
    )
    store.write_bytes(folder / "provenance.json", record.model_dump_json(indent=2).encode() + b"\n")


def _require(inputs: dict[str, list[Path]]) -> None:
    for name, paths in inputs.items():
        for path in paths:
            if not path.is_file():
                raise UserError(f"{path}: input `{name}` does not exist; run the stage that makes it.")


@contextlib.contextmanager
def _alone(scratch: Path) -> Iterator[None]:
    """Hold the folder's lock: a job that outlived its killed scheduler is waited for, never run beside."""
    lock = store.Lock(scratch / "lock")
    if not lock.acquire():
        log.warning("%s: another process is making this result; waiting for it.", scratch)
        lock.wait()
    yield
    lock.release()
