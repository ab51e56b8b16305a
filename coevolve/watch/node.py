"""Checks of a compute node by what jobs do there: `coevolve doctor --node` in a job."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from coevolve.assets.checks import Check, run_check
from coevolve.errors import UserError
from coevolve.pipeline import devices
from coevolve.watch import doctor, estimates
from coevolve.watch.doctor import RunSetup

#: Seconds that two processes may take to find each other.
EXCHANGE_SECONDS = 60


def checks(setup: RunSetup) -> Iterator[Check]:
    """The checks of this node for a suite, quick ones first; raises `UserError` without a suite and a machine."""
    if setup.plan is None or setup.machine is None:
        raise UserError("doctor --node: which suite and machine? Give --suite and --machine.")
    yield from doctor.disks(setup)
    if setup.gpus:
        yield run_check("GPU", lambda: _gpus(setup.gpus))
    if sizes := estimates.memory(setup.plan, setup.machine).values():
        yield run_check("memory of a GPU", lambda: _memory(max(sizes)))
    if any(job.stage.launchable for job in setup.plan.jobs()):
        yield run_check("two processes", _exchange)
    yield from doctor.environments(setup.plan.suite, start=True)


def _gpus(needed: int) -> str:
    """The GPUs of this job; raises `UserError` if Slurm gave fewer than `needed`, or torch sees fewer."""
    if devices.on_cpus():
        return f"not used: {devices.USE_CPU} is set"
    devices.require_assigned(needed)
    return doctor.gpu(needed)


def _memory(needed: float) -> str:
    """The memory of the first GPU; raises `UserError` if a training is computed to need more than it has."""
    if devices.on_cpus():
        return f"not used: {devices.USE_CPU} is set"
    torch: Any = importlib.import_module("torch")
    has = torch.cuda.mem_get_info(0)[1]
    if has < needed:
        raise UserError(
            f"a training is computed to need {needed / 1e9:.0f} GB of each GPU, which has {has / 1e9:.0f} GB; request"
            " more `gpus` and `processes` for it, or set a smaller `micro_batch`."
        )
    return f"{has / 1e9:.0f} GB, of which a training needs {needed / 1e9:.0f} GB, computed"


def _exchange() -> str:
    """The backend by which two processes have added their numbers; raises `UserError` if they have not."""
    torch: Any = importlib.import_module("torch")
    multiprocessing: Any = importlib.import_module("torch.multiprocessing")
    backend = "nccl" if torch.cuda.device_count() > 1 and not devices.on_cpus() else "gloo"
    with tempfile.TemporaryDirectory() as folder:
        try:
            multiprocessing.spawn(_add, (backend, f"file://{folder}/meeting"), nprocs=2)
        except (multiprocessing.ProcessRaisedException, multiprocessing.ProcessExitedException) as error:
            last = str(error).strip().splitlines()[-1]
            raise UserError(f"two processes do not reach each other by {backend} ({last}).") from None
    return f"reached each other by {backend}"


def _add(rank: int, backend: str, meeting: str) -> None:
    """In each of two processes: the sum of both ranks' ones."""
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")
    limit = timedelta(seconds=EXCHANGE_SECONDS)
    distributed.init_process_group(backend, init_method=meeting, rank=rank, world_size=2, timeout=limit)
    number = torch.ones(1, device=f"cuda:{rank}" if backend == "nccl" else "cpu")
    distributed.all_reduce(number)
    distributed.destroy_process_group()
    if number.item() != 2:
        raise UserError(f"1 + 1 was {number.item()} in process {rank}")
