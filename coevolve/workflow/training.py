"""What all training stages share."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import torch

from coevolve.train.train_report import TrainReport
from coevolve.workflow.job import Job

log = logging.getLogger(__name__)


def prepare(job: Job) -> None:
    """Give torch the job's threads and nothing more; the same number gives the same bits."""
    torch.set_num_threads(job.threads)


def notes(report: TrainReport) -> dict[str, Any]:
    """A training report as plain data for the provenance."""
    return {**dataclasses.asdict(report), "trained_tokens": report.tokens}
