"""GRPO from a base policy: it plays the training tasks and learns from its own episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve.stages.job import Job
from coevolve.stages.learning import notes, prepare
from coevolve.stages.worlds import world
from coevolve.train import grpo


def run(job: Job, out: Path) -> dict[str, Any]:
    """Train the `policy` on the `tasks`; write a policy directory, and the episodes it learned from beside it."""
    prepare(job)
    config = job.suite.grpo
    with world(job, config.batch_size) as where:
        report = grpo.run_grpo(
            where,
            start=job.policy("policy"),
            config=config,
            lora=job.model.lora,
            context=job.model.context,
            seed=job.seed,
            out=out,
            work=job.work,
        )
    return notes(report)
