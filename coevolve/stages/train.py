"""One agent's preference training: eq. 7 for the failure agent, eq. 9 for the target; weights come with each pair."""

import math
from pathlib import Path

from coevolve.config.sections import DpoConfig
from coevolve.records.training import TrainReport
from coevolve.run.job import Job
from coevolve.stages.parts.training import training_run
from coevolve.stages.parts.training_pairs import job_pairs
from coevolve.train import dpo
from coevolve.train.dataset import steps_of


def run(job: Job, out: Path) -> TrainReport:
    """Train from `start` on the pairs, with the reference log-probs in `scores` or with the policy `reference`."""
    training = training_run(job, out)
    return dpo.run_dpo(
        job_pairs(job, training.start),
        _compute_matched(job),
        training,
        iteration=job.branch.iteration,
        reference=job.file("reference").parent if "reference" in job.inputs else None,
    )


def _compute_matched(job: Job) -> DpoConfig:
    """The suite's settings; a compute-matched control trains for the epochs that give the other method's steps.

    These are the steps of all files `steps_like`, each trained on alone, before pairs beyond the context are dropped.
    """
    config, others = job.suite.dpo, job.inputs.get("steps_like", [])
    other_steps = sum(steps_of(config.epochs, _epoch_steps(path, config)) for path in others)
    if not other_steps or not (steps := _epoch_steps(job.file("pairs"), config)):
        return config  # nothing to match
    return config.model_copy(update={"epochs": other_steps / steps})


def _epoch_steps(pairs: Path, config: DpoConfig) -> int:
    """The steps of one epoch over a file of pairs."""
    return math.ceil(pairs.read_bytes().count(b"\n") / config.batch_size)
