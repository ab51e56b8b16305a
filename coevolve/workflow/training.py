"""Training as a stage: threads, and trajectories as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from coevolve.chat.chat_template import Renderer, TokenizedTrajectory
from coevolve.train.policy_io import TrainingRun
from coevolve.types import Trajectory
from coevolve.workflow.job import Job


def training_run(job: Job, out: Path, start: str = "start") -> TrainingRun:
    """The training from the input policy called `start` to `out`; PyTorch gets the job's number of threads."""
    limit_threads(job)
    model = job.model
    return TrainingRun(job.policy(start), out, job.work, job.seed, model.lora, model.context, model.training_dtype)


def limit_threads(job: Job) -> None:
    """Give PyTorch the job's number of threads; an equal number gives equal bits."""
    torch.set_num_threads(job.threads)


def tokenize(trajectories: Sequence[Trajectory], renderer: Renderer) -> list[TokenizedTrajectory]:
    """The trajectories as token ids with their action masks; sampled token ids are kept."""
    return [
        renderer.render(trajectory.prompt, trajectory.completion, [turn.token_ids for turn in trajectory.turns])
        for trajectory in trajectories
    ]


def texts(trajectories: Sequence[Trajectory]) -> list[str]:
    """Every message of the trajectories, in order."""
    return [message.content for trajectory in trajectories for message in (*trajectory.prompt, *trajectory.completion)]
