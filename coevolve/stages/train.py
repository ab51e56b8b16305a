"""One agent's preference training: eq. 7 for the failure agent, eq. 9 for the target; weights come with each pair."""

from __future__ import annotations

from pathlib import Path

from coevolve.config.sections import DpoConfig
from coevolve.train import dpo
from coevolve.types import TrainReport
from coevolve.workflow.job import Job
from coevolve.workflow.training import training_run
from coevolve.workflow.training_pairs import tokenized_pairs


def run(job: Job, out: Path) -> TrainReport:
    """Train from `start` on the pairs, with the reference log-probs in `scores` or with the policy `reference`."""
    training = training_run(job, out)
    return dpo.run_dpo(
        tokenized_pairs(job, training.start),
        _compute_matched(job),
        training,
        iteration=job.branch.iteration,
        reference=job.policy("reference") if "reference" in job.inputs else None,
    )


def _compute_matched(job: Job) -> DpoConfig:
    """The suite's settings; a compute-matched control trains for the epochs that give the other method's pair count."""
    config = job.suite.dpo
    if "steps_like" not in job.inputs:
        return config
    pairs, other_pairs = (
        sum(path.read_bytes().count(b"\n") for path in job.inputs[name]) for name in ("pairs", "steps_like")
    )
    if not pairs or not other_pairs:
        return config  # nothing to match
    return config.model_copy(update={"epochs": config.epochs * other_pairs / pairs})
