"""Online training as a stage: what PPO and GRPO share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from coevolve.envs.workers import environments
from coevolve.train.online import OnlineSetup
from coevolve.types import Task
from coevolve.workflow.job import Job
from coevolve.workflow.playing import prompt_builder


@contextlib.contextmanager
def online_setup(job: Job, episodes: int) -> Iterator[OnlineSetup]:
    """The job's tasks, and environments for up to `episodes` episodes in parallel."""
    config = job.suite.rollout
    with environments(job.setup, min(job.env.workers, episodes)) as envs:
        yield OnlineSetup(
            tasks=job.records("tasks", Task),
            envs=envs,
            prompt=prompt_builder(job),
            protocol=job.suite.protocol,
            long_prompt=job.suite.quirks.long_prompt,
            max_new_tokens=config.max_new_tokens,
            retries=config.retries,
        )
