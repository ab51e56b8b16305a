"""Section 4.1: supervised fine-tuning of a base policy on action tokens only (eq. 3 to 5)."""

from __future__ import annotations

from pathlib import Path

from coevolve.chat.chat_template import Renderer
from coevolve.policies import loading
from coevolve.train import sft
from coevolve.types import TrainReport, Trajectory
from coevolve.workflow.job import Job
from coevolve.workflow.training import tokenize, training_run


def run(job: Job, out: Path) -> TrainReport:
    """Fine-tune from `start` on the experts and write a policy directory; the agent's name decides its seed."""
    training = training_run(job, out)
    experts = tokenize(job.records("experts", Trajectory), Renderer(loading.load_tokenizer(training.start)))
    return sft.run_sft(experts, job.suite.sft, training)
