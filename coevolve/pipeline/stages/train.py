"""One agent's preference training: eq. 7 for the failure agent, eq. 9 for the target; weights come with each pair."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from coevolve.pipeline import work
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import Stage
from coevolve.records.training import TrainReport
from coevolve.train.settings import DpoConfig

if TYPE_CHECKING:
    from coevolve.config.suite import Suite
    from coevolve.pipeline.stage import Inputs, PlannedJob
    from coevolve.records.provenance import Workload


def run(job: Job, out: Path) -> TrainReport:
    """Train from `start` on the pairs, with the reference log-probs in `scores` or with the policy `reference`."""
    from coevolve.pipeline.stages.parts.training import training_run
    from coevolve.pipeline.stages.parts.training_pairs import job_pairs
    from coevolve.train import dpo

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
    from coevolve.train.dataset import steps_of

    config, others = job.suite.dpo, job.inputs.get("steps_like", [])
    other_steps = sum(steps_of(config.epochs, _epoch_steps(path, config)) for path in others)
    if not other_steps or not (steps := _epoch_steps(job.file("pairs"), config)):
        return config  # nothing to match
    return config.model_copy(update={"epochs": other_steps / steps})


def _epoch_steps(pairs: Path, config: DpoConfig) -> int:
    """The steps of one epoch over a file of pairs."""
    return math.ceil(pairs.read_bytes().count(b"\n") / config.batch_size)


def inputs(pairs: PlannedJob, start: PlannedJob, reference: Inputs, steps_like: list[str]) -> Inputs:
    """Pairs, the policy to train, and the reference policy or its log-probs, if the objective needs them.

    `steps_like`: the pairs of the method whose number of gradient steps the training takes.
    """
    matched: Inputs = {"steps_like": steps_like} if steps_like else {}
    return {"pairs": pairs["pairs.jsonl"], "start": start["policy.json"], **matched, **reference}


def cost(suite: Suite, job: PlannedJob) -> Workload:
    """All epochs over the pairs, with the reference policy's forward passes where none were computed before.

    A compute-matched control takes as many steps, and so about as many pairs, as the agents that it is matched to.
    """
    from coevolve.config.suite import for_method

    branch, (configured, expected) = job.subject.branch, work.setting(suite, job)
    passes = configured.dpo.epochs * (1 + work.reference_passes(configured.dpo))
    other = configured.dpo.steps_like
    if other is None or job.agent == "failure":
        return work.training_work(passes * work.pair_tokens(configured, branch, job.agent, expected))
    matched = replace(branch, method=other)
    trained = (
        work.pair_tokens(for_method(suite, other, name), matched, name, expected)
        for name in work.trained_agents(suite, job.subject.env, matched)
    )
    return work.training_work(passes * sum(trained))


STAGE = Stage(
    help="Train the failure agent (eq. 7) or the target agent (eq. 9): one objective, weights per pair.",
    run=run,
    reads=("models", "dpo"),
    files=("policy.json",),
    cost=cost,
    image="train",
    launchable=True,
)
