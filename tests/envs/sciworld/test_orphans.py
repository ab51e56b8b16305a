"""However the process that started a JVM ends, the JVM ends with it."""

import signal
import subprocess
import sys

import psutil
import pytest

PROGRAM = """
import sys, time
from coevolve.envs.sciworld.env import SciWorld
from coevolve.envs.sciworld.jvm import Simulator
from coevolve.envs.sciworld.tasks import task_of

simulator = Simulator(256, 60.0)
SciWorld(simulator, "easy").start(task_of("boil", 0, "train"))
print(simulator.pid, flush=True)
ending = sys.argv[1]
if ending == "close":
    simulator.close()
elif ending == "exception":
    raise RuntimeError("on purpose")
elif ending != "exit":
    time.sleep(3600)
"""


@pytest.mark.parametrize("ending", ["exit", "close", "exception", "SIGTERM", "SIGKILL"])
def test_no_orphan(ending: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, ending], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with parent:
        jvm = psutil.Process(int(parent.stdout.readline()))
        if ending.startswith("SIG"):
            assert jvm.is_running()
            parent.send_signal(getattr(signal, ending))
    psutil.wait_procs([jvm])  # at last the test's time limit
