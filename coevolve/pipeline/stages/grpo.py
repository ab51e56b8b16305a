"""GRPO from a base policy, which trains on its own episodes of the training tasks."""

from __future__ import annotations

from pathlib import Path

from coevolve.pipeline import work
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import SAMPLED, Stage
from coevolve.records.training import TrainReport


def run(job: Job, out: Path) -> TrainReport:
    """Train the `policy` on the `tasks`; write a policy directory with the episodes that it trained on."""
    from coevolve.pipeline.stages.parts.online_training import online_setup
    from coevolve.pipeline.stages.parts.training import training_run
    from coevolve.train import grpo

    config, training = job.suite.grpo, training_run(job, out, start="policy")
    with online_setup(job, grpo.episodes_per_rank(config)) as setup:
        return grpo.run_grpo(setup, config, training)


STAGE = Stage(
    help="Train the target with GRPO on groups of episodes that it samples.",
    run=run,
    reads=(*SAMPLED, "grpo"),
    files=("policy.json", "episodes.jsonl"),
    modules=("domain",),
    cost=work.of_setting(lambda suite, of: work.playing_work(of, of.explore * suite.grpo.epochs * suite.grpo.group, 1)),
    image="train",
    launchable=True,
)
