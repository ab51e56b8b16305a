"""Online training as a stage: what PPO, GRPO and its rounds share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from coevolve.envs.workers import environments
from coevolve.train.online import OnlineSetup
from coevolve.types import Task
from coevolve.workflow.job import Job
from coevolve.workflow.playing import prompt_builder


@contextlib.contextmanager
def online_setup(job: Job, episodes: int, tasks: Sequence[Task] | None = None) -> Iterator[OnlineSetup]:
    """Environments for up to `episodes` episodes in parallel, and the tasks (None: the input `tasks`)."""
    config = job.suite.rollout
    with environments(job.setup, min(job.env.workers, episodes)) as envs:
        yield OnlineSetup(
            tasks=job.records("tasks", Task) if tasks is None else tasks,
            envs=envs,
            prompt=prompt_builder(job),
            protocol=job.suite.protocol,
            long_prompt=job.suite.quirks.long_prompt,
            max_new_tokens=config.max_new_tokens,
            retries=config.retries,
        )
