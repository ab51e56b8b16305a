"""Training as a stage: threads, memory, and trajectories as token ids."""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch

from coevolve.chat.chat_template import Renderer, TokenizedTrajectory
from coevolve.pipeline.job import Job
from coevolve.records.episodes import Trajectory
from coevolve.train.policy_io import TrainingRun

#: Parameters of the GNU C library's `mallopt` (malloc.h): when freed memory goes back, and from what size at once.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def training_run(job: Job, out: Path, start: str = "start") -> TrainingRun:
    """The training from the input policy called `start` to `out`, in a process that is ready for it."""
    prepare_process(job.threads)
    model, folder = job.model, job.file(start).parent
    return TrainingRun(folder, out, job.work, job.seed, model.lora, model.context, model.training_dtype)


def prepare_process(threads: int) -> None:
    """Give PyTorch so many threads (an equal number gives equal bits), and keep freed memory."""
    torch.set_num_threads(threads)
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Let the process use freed memory again instead of giving it back, where the C library is GNU's.

    Passes on a CPU make and free tensors of megabytes. By default each is mapped, zeroed page by page and unmapped
    again: 17 % of the CPU time of trainings of 135 million parameters, two at once.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # A version that refuses the large threshold must keep its own rules: any `mallopt` switches those off.
    if mallopt is not None and mallopt(M_MMAP_THRESHOLD, 2**30):
        mallopt(M_TRIM_THRESHOLD, -1)


def tokenize(trajectories: Sequence[Trajectory], renderer: Renderer) -> list[TokenizedTrajectory]:
    """The trajectories as token ids with their action masks; sampled token ids are kept."""
    return [
        renderer.render(trajectory.prompt, trajectory.completion, [turn.token_ids for turn in trajectory.turns])
        for trajectory in trajectories
    ]


def texts(trajectories: Sequence[Trajectory]) -> list[str]:
    """Every message of the trajectories, in order."""
    return [message.content for trajectory in trajectories for message in (*trajectory.prompt, *trajectory.completion)]
