"""PPO from a base policy, which trains on its own episodes of the training tasks."""

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
    from coevolve.train import ppo

    config, training = job.suite.ppo, training_run(job, out, start="policy")
    with online_setup(job, ppo.episodes_per_rank(config)) as setup:
        return ppo.run_ppo(setup, config, training)


STAGE = Stage(
    help="Train the target with PPO on episodes that it samples.",
    run=run,
    reads=(*SAMPLED, "ppo"),
    files=("policy.json", "episodes.jsonl"),
    modules=("domain",),
    cost=work.of_setting(lambda suite, of: work.playing_work(of, of.explore * suite.ppo.epochs, suite.ppo.passes)),
    image="train",
    launchable=True,
)
