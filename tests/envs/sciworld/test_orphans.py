"""However the process that started a JVM ends, the JVM ends with it."""

import signal
import time

import psutil
import pytest
from envs.endings import ending

START = """
from coevolve.envs.sciworld.env import SciWorld
from coevolve.envs.sciworld.jvm import Simulator
from coevolve.envs.sciworld.tasks import task_of

started = Simulator(256, 60.0)
SciWorld(started, "easy").start(task_of("boil", 0, "train"))
"""


@pytest.mark.parametrize("how", ["exit", "close", "exception", "SIGTERM", "SIGKILL"])
def test_no_orphan(how):
    with ending(START, how) as (process, jvm):
        if how.startswith("SIG"):
            assert psutil.pid_exists(jvm)
            process.send_signal(getattr(signal, how))
        process.wait()
    while psutil.pid_exists(jvm):  # at last the test's time limit
        time.sleep(0.05)
