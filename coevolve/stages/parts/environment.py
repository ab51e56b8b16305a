"""The environment of a job."""

import secrets

from coevolve.config.derived.protocol import quirks
from coevolve.envs.base import Setup
from coevolve.run.job import Job
from coevolve.storage import files


def env_setup(job: Job) -> Setup:
    """What the environment's package needs: its config section, the protocol and the prepared folder.

    Its `chance` is drawn once: a job that was killed reads it from its work folder.
    """
    drawn = job.work / "chance"
    if not drawn.exists():
        files.write_bytes(drawn, str(secrets.randbits(63)).encode())
    prepared = job.file("prepared").parent if "prepared" in job.inputs else None
    of_env = job.env, f"envs.{job.wildcards['env']}", job.suite.protocol, quirks(job.suite)
    return Setup(*of_env, prepared, int(drawn.read_text()))
