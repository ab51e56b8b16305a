"""The settings with which the module `playing` plays the episodes of a job."""

from __future__ import annotations

from coevolve.config.derived.protocol import engine, exploration_temperature, quirks
from coevolve.policies.engines import EngineSettings
from coevolve.run.job import Job
from coevolve.stages.parts.environment import env_setup
from coevolve.stages.parts.playing import USAGE, PlaySettings
from coevolve.stages.parts.prompting import prompt_builder


def play_settings(job: Job) -> PlaySettings:
    """The settings with which the job's episodes are played."""
    suite, model = job.suite, job.model
    return PlaySettings(
        env=env_setup(job),
        agent=job.agent,
        rollout=suite.rollout,
        temperature=exploration_temperature(suite),
        prompt=prompt_builder(job),
        seed=job.seed,
        work=job.work,
        threads=job.threads,
        engine=engine(suite, job.wildcards["model"]),
        policies=EngineSettings(
            context=model.context,
            long_prompt=quirks(suite).long_prompt,
            workers=job.env.workers,
            usage=job.work / USAGE,
            dtype=None if model.endpoint else suite.sampler.dtype,
            endpoint=model.endpoint,
            devices=job.devices,
        ),
    )
