"""A rollout that is killed and run again ends in the same bytes."""

import os
import signal
import subprocess
import sys
import time

from rollout.playing import content
from rollout.runs import SAMPLES, TASKS, run


def lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_kill_and_resume(tmp_path, root):
    path = tmp_path / "episodes.jsonl"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")])}
    process = subprocess.Popen([sys.executable, root / "tests/rollout/runs.py", path], env=environment)
    while lines(path) < 3 and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert 3 <= lines(path) < SAMPLES * len(TASKS)
    with path.open("ab") as file:
        file.write(b'{"schema_version":1,"task":{"env":"keyd')
    assert content(run(path)) == content(run(tmp_path / "whole.jsonl"))
