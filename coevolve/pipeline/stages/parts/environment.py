"""The environment of a job."""

import contextlib
import secrets

from coevolve.config.suite import quirks
from coevolve.envs.base import Setup
from coevolve.pipeline.job import Job
from coevolve.storage import files


def env_setup(job: Job) -> Setup:
    """What the environment's package needs: its config section, the protocol and the prepared folder.

    Its `chance` is drawn once: a job that was killed and the other ranks of a launch read it from the work folder.
    """
    drawn = job.work / "chance"
    if not drawn.exists():
        number_file = drawn.with_name(f"chance-{(number := secrets.randbits(63))}")
        files.write_bytes(number_file, str(number).encode())
        with contextlib.suppress(FileExistsError):  # of several processes the first one's number counts
            drawn.hardlink_to(number_file)
    prepared = job.file("prepared").parent if "prepared" in job.inputs else None
    of_env = job.env, f"envs.{job.wildcards['env']}", job.suite.protocol, quirks(job.suite)
    return Setup(*of_env, prepared, int(drawn.read_text()))
