"""What a job computes on, and which GPUs it uses where no scheduler assigns them: free ones, of those that it sees.

Under Slurm a job sees the GPUs that it requested. On a computer without a scheduler every job sees all, and all would
use the first. There each job takes locks on as many as it requested, and sees no others.
"""

import contextlib
import itertools
import logging
import os
import platform
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from coevolve.errors import UserError
from coevolve.storage.locks import ProcessLock

log = logging.getLogger(__name__)
VISIBLE = "CUDA_VISIBLE_DEVICES"
#: As accelerate names it.
USE_CPU = "ACCELERATE_USE_CPU"
#: The locks of this computer; a folder of all its processes, also of those in containers.
LOCKS = Path(f"/tmp/coevolve-gpus-{os.getuid()}")
#: Seconds between two looks for free GPUs.
SECONDS = 1.0


@contextlib.contextmanager
def taken(count: int) -> Iterator[None]:
    """Show this process, and those that it starts, `count` GPUs that no other job of this user has.

    It waits until so many are free. Nothing changes if `count` is 0 or no more than `count` are visible. Raises
    `UserError` if a Slurm job has fewer.
    """
    require_assigned(count)
    before, given = os.environ.get(VISIBLE), _given()
    # Under Slurm and in a launched process these are the requested ones: the driver need not be asked.
    settled = count == 0 or (given is not None and len(given) <= count)
    visible = [] if settled else list(_visible(given))
    if len(visible) <= count:
        yield
        return
    locks = _free(visible, count)
    os.environ[VISIBLE] = ",".join(locks)
    log.info("GPU %s of %d", ", ".join(str(visible.index(name)) for name in locks), len(visible))
    try:
        yield
    finally:
        del os.environ[VISIBLE]
        if before is not None:
            os.environ[VISIBLE] = before
        for lock in locks.values():
            lock.release()


def require_assigned(count: int) -> None:
    """Raise `UserError` if Slurm gave this job fewer GPUs than `count`: it would train on fewer, or on the CPU.

    A launched process is one of several that share the GPUs.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if not job or "RANK" in os.environ or on_cpus():
        return
    assigned = _given()
    seen = _visible(None) if assigned is None else assigned
    if len(seen) < count:
        node = os.environ.get("SLURMD_NODENAME", "this node")
        raise UserError(
            f"--gpus {count}: Slurm job {job} has {len(seen)} on {node}; correct `gpus` and `gpu` of the machine file,"
            f" or ask the cluster's administrators why sbatch gives fewer."
        )


def on_cpus() -> bool:
    """Whether the environment variable `USE_CPU` selects CPUs."""
    return os.environ.get(USE_CPU, "").lower() in ("1", "true", "yes")


def hardware() -> str:
    """The processor and the GPUs that this process sees: `AMD EPYC, 8 x NVIDIA H100 80GB HBM3`.

    Other hardware can change the last bits of a number, and with them the weights of a training.
    """
    counts = Counter(_visible(_given()).values())
    return ", ".join([processor(), *(f"{count} x {name}" for name, count in counts.items())])


def processor() -> str:
    """The processor's name, as Linux has it, or its architecture."""
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines() if cpus.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _given() -> list[str] | None:
    """The GPUs that the environment variable `VISIBLE` names; None if it is not set."""
    names = os.environ.get(VISIBLE)
    return None if names is None else [name.strip() for name in names.split(",") if name.strip()]


def _visible(given: Sequence[str] | None) -> dict[str, str]:
    """Names of the given GPUs (None: all) by their UUIDs, or as given where the driver's tool does not list them."""
    known = _listed()
    if given is None:
        return known
    uuids = list(known)
    chosen = (uuids[int(name)] if name.isdigit() and int(name) < len(uuids) else name for name in given)
    return {uuid: known.get(uuid, uuid) for uuid in chosen}


def _listed() -> dict[str, str]:
    """The name of each GPU of the computer by its UUID, as the driver's tool prints them; empty without the tool.

    UUIDs, unlike numbers, do not depend on the order that CUDA gives GPUs.
    """
    if not (tool := shutil.which("nvidia-smi")):
        return {}
    query = [tool, "--query-gpu=uuid,name", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return {uuid.strip(): name.strip() for uuid, _, name in (line.partition(",") for line in lines if line.strip())}


def _free(visible: Sequence[str], count: int) -> dict[str, ProcessLock]:
    """Locks on `count` of the GPUs, by name. One job chooses at a time: else two could wait for each other's."""
    choosing, waited = ProcessLock(LOCKS / "choosing"), False
    while True:
        choosing.acquire(wait=True)
        locks = dict(itertools.islice(_locked(visible), count))
        if len(locks) == count:
            choosing.release()
            return locks
        for lock in locks.values():
            lock.release()
        choosing.release()
        if not waited:
            log.info("%d of %d GPUs are free and %d are needed; waiting.", len(locks), len(visible), count)
        waited = True
        time.sleep(SECONDS)


def _locked(visible: Sequence[str]) -> Iterator[tuple[str, ProcessLock]]:
    """The GPUs that are free, each locked by this process before it is yielded."""
    for name in visible:
        lock = ProcessLock(LOCKS / name.replace("/", "_"))
        if lock.acquire():
            yield name, lock
