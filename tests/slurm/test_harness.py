"""The harness of the Slurm tests, without a Slurm."""

import subprocess
import sys

import pytest

BACKGROUND = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
from slurm.harness import interruptible
child = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
process = interruptible(child, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
process.stdout.readline()
process.send_signal(signal.SIGINT)
sys.exit(0 if process.wait(timeout=20) == -signal.SIGINT else 1)
"""


@pytest.mark.timeout(60)
def test_ctrl_c_reaches_a_run_of_tests_in_the_background(root):
    done = subprocess.run([sys.executable, "-c", BACKGROUND], cwd=root / "tests", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
