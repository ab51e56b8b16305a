"""Where a policy plays while it is trained: what PPO and GRPO share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from coevolve.envs.domains import domain
from coevolve.stages.asking import asking
from coevolve.stages.job import Job
from coevolve.train.online import World
from coevolve.types import Task


@contextlib.contextmanager
def world(job: Job, episodes: int) -> Iterator[World]:
    """The job's tasks, and environments for as many of the `episodes` of a step as the environment has workers."""
    config = job.suite.rollout
    with domain(job.env).pool(job.setup, min(job.env.workers, episodes)) as envs:
        yield World(
            tasks=job.records("tasks", Task),
            envs=envs,
            prompt=asking(job),
            protocol=job.suite.protocol,
            long_prompt=job.suite.quirks.long_prompt,
            max_new_tokens=config.max_new_tokens,
            retries=config.retries,
        )
