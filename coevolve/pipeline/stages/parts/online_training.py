"""Online training as a stage: what PPO, GRPO and its rounds share."""

import contextlib
from collections.abc import Iterator, Sequence

from coevolve.config.suite import quirks
from coevolve.envs.workers import environments
from coevolve.pipeline.job import Job
from coevolve.pipeline.stages.parts.environment import env_setup
from coevolve.pipeline.stages.parts.prompting import prompt_builder
from coevolve.records.episodes import Task
from coevolve.train.online import OnlineSetup


@contextlib.contextmanager
def online_setup(job: Job, episodes: int, tasks: Sequence[Task] | None = None) -> Iterator[OnlineSetup]:
    """Environments for up to `episodes` episodes in parallel, and the tasks (None: the input `tasks`)."""
    config = job.suite.rollout
    with environments(env_setup(job), min(job.env.workers, episodes)) as envs:
        yield OnlineSetup(
            tasks=job.records("tasks", Task) if tasks is None else tasks,
            envs=envs,
            prompt=prompt_builder(job),
            protocol=job.suite.protocol,
            long_prompt=quirks(job.suite).long_prompt,
            max_new_tokens=config.max_new_tokens,
            retries=config.retries,
            dtype=job.suite.sampler.dtype,
        )
