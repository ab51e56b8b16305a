"""Checks of a node by a short job, before the first job of a run: the doctor's, where jobs run, and measurements.

`coevolve.follow.preflight_jobs` submits them, one for each image and kind of node.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from coevolve.assets import images
from coevolve.assets.checks import Check, run_check
from coevolve.errors import UserError
from coevolve.follow import doctor, estimates
from coevolve.follow.doctor import RunSetup
from coevolve.pipeline import devices
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stage import MIRROR
from coevolve.storage import origin

#: The image whose stages need no PyTorch.
WITHOUT_TORCH = "envs"
#: The file with which the disk is measured, in MB (1e6 bytes).
FILE_MB = 256
#: Seconds that two processes may take to find each other.
EXCHANGE_SECONDS = 60


def checks(setup: RunSetup, image: str, gpus: int, measured: dict[str, float]) -> Iterator[Check]:
    """The checks of this node for the stages of an image, with `gpus` GPUs; adds measurements by name to `measured`.

    A failed check does not raise; the caller stops after it, because a later one may wait for what is missing.
    """
    if setup.suite is None or setup.machine is None:
        raise UserError("preflight: which suite and machine? Give --suite and --machine.")
    suite, plan = setup.suite, Plan(setup.suite, shards=setup.machine.shards)
    stages = {job.stage.name: job.stage for job in plan.jobs() if job.stage.image == image}
    separate = origin.container() or Path(sys.prefix).name == images.environment(image).name
    yield doctor.packages(images.packages_lock(image) if separate else doctor.LOCK, subset=bool(origin.container()))
    yield doctor.disk(Path(plan.home), setup.gigabytes)
    yield doctor.disk(Path(MIRROR), doctor.MINIMUM_GB)
    yield doctor.scratch()
    if image != WITHOUT_TORCH:
        yield run_check("PyTorch", lambda: _version("torch"))
    if gpus:
        yield run_check("GPU", lambda: _gpus(gpus))
        sizes = [bytes_ for (_, stage), bytes_ in estimates.memory(plan, setup.machine).items() if stage in stages]
        if sizes:
            yield run_check("memory of a GPU", lambda: _memory(max(sizes)))
    if image == "sample" and suite.sampler.engine == "vllm":
        yield run_check("vLLM", lambda: _version("vllm"))
    if any(stage.launchable for stage in stages.values()):
        yield run_check("two processes", _exchange)
    if any(stage.modules for stage in stages.values()):
        yield from doctor.environments(suite, start=True)
    yield run_check("speed of the disk", lambda: _speed(Path(plan.home), measured))


def _version(module: str) -> str:
    try:
        return str(importlib.import_module(module).__version__)
    except (ImportError, OSError) as error:
        raise UserError(f"`import {module}` fails ({' '.join(str(error).split())}); {_remedy()}.") from None


def _remedy() -> str:
    return (
        "build the image again with `make images`" if origin.container() else "run `make -B setup` and `make cluster`"
    )


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
            raise UserError(f"two processes do not reach each other by {backend} ({last}); {_remedy()}.") from None
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


def _speed(folder: Path, measured: dict[str, float]) -> str:
    """MB/s (1e6 bytes) at which a file in `folder`, or its nearest existing parent, is written and read."""
    while not folder.exists():
        folder = folder.parent
    block = os.urandom(1_000_000)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        started = time.monotonic()
        for _ in range(FILE_MB):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        written = time.monotonic()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # not from this node's memory
        file.seek(0)
        while file.read(len(block)):
            pass
        read = time.monotonic()
    measured["read_mb_a_second"] = FILE_MB / (read - written)
    return f"{FILE_MB / (written - started):,.0f} MB/s written and {FILE_MB / (read - written):,.0f} read, in {folder}"
