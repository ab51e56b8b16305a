"""Which GPUs jobs take on a computer without a scheduler; the driver's tool is a script with the GPUs' UUIDs."""

import os
import subprocess
import sys

import pytest

from coevolve.config.loading import load_suite
from coevolve.pipeline import devices
from coevolve.pipeline.job_file import JobFile
from coevolve.pipeline.plan import Plan

UUIDS = [f"GPU-{number}0-cafe" for number in range(4)]
NAME = "NVIDIA H100 80GB HBM3"
JOB = """
import os, pathlib, sys
from coevolve.config.loading import load_suite
from coevolve.pipeline import devices
from coevolve.pipeline.job_file import JobFile
from coevolve.pipeline.plan import Plan
devices.LOCKS, devices.SECONDS = pathlib.Path(sys.argv[1]), 0.05
with devices.taken(int(sys.argv[2])):
    print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def computer(tmp_path, monkeypatch):
    tool = tmp_path / "bin/nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n" + "".join(f"echo {uuid}, {NAME}\n" for uuid in UUIDS))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.delenv(devices.VISIBLE, raising=False)
    monkeypatch.setattr(devices, "LOCKS", tmp_path / "locks")
    return tmp_path


@pytest.fixture
def start(computer):
    """A function that starts a job with so many GPUs, which holds them until its input ends."""
    jobs = []

    def start(count):
        command = [sys.executable, "-c", JOB, computer / "locks", str(count)]
        jobs.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return jobs[-1]

    yield start
    for job in jobs:
        job.communicate()


def gpus(job):
    return job.stdout.readline().strip().split(",")


def test_jobs_at_the_same_time_have_different_gpus(start):
    first, second = start(1), start(2)
    assert len(gpus(first)) == 1
    held = gpus(second)
    third = gpus(start(1))
    assert len(held) == 2 and len({*held, *third}) == 3 and {*held, *third} < set(UUIDS)


@pytest.mark.parametrize(("assigned", "count"), [("0,1,2", 8), ("", 1), (None, 8)])
def test_a_slurm_job_with_fewer_gpus_than_requested_ends_before_it_imports_torch(computer, assigned, count):
    """The whole command, whose inputs are not looked at; without CUDA_VISIBLE_DEVICES the driver's tool is asked."""
    environment = os.environ | {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
    environment.pop("ACCELERATE_USE_CPU", None)
    environment |= {} if assigned is None else {devices.VISIBLE: assigned}
    code = (
        "import atexit, sys, coevolve.cli; atexit.register(lambda: print('torch' in sys.modules)); coevolve.cli.main()"
    )
    plan, on = Plan(load_suite("smoke")), {"model": "tiny", "env": "webshop", "branch": "base/pretrained"}
    file = computer / "job.json"
    JobFile.of(plan, plan.require("pretrain", on), out=computer / "out").write(file)
    words = ["job", str(file), "--gpus", str(count)]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True, check=False
    )
    has = len(UUIDS if assigned is None else [name for name in assigned.split(",") if name])
    assert done.returncode == 2 and done.stdout == "False\n"
    assert f"--gpus {count}: Slurm job 7 has {has} on n1; " in done.stderr and "Traceback" not in done.stderr
    assert not (computer / "out").exists()


def test_a_job_waits_for_gpus_and_takes_none_meanwhile(start):
    """Of four GPUs three are in use: a job for two waits, and the free one stays free for a job for one."""
    one, two = start(1), start(2)
    freed = {*gpus(one)}
    gpus(two)
    waiting, small = start(2), start(1)
    freed |= {*gpus(small)}
    small.communicate()
    one.kill()  # the kernel releases its locks
    one.wait()
    assert set(gpus(waiting)) == freed


def test_no_more_than_the_visible_gpus_are_taken(computer, monkeypatch):
    monkeypatch.setenv(devices.VISIBLE, "3, 1")
    with devices.taken(1):
        assert os.environ[devices.VISIBLE] == UUIDS[3], "numbers are those of the driver's tool"
        with devices.taken(1):
            assert os.environ[devices.VISIBLE] == UUIDS[3], "a launched process has its launcher's"
    assert os.environ[devices.VISIBLE] == "3, 1"
    monkeypatch.setenv(devices.VISIBLE, "MIG-GPU-1/0/0,MIG-GPU-1/1/0")
    with devices.taken(1):
        assert os.environ[devices.VISIBLE] == "MIG-GPU-1/0/0"


@pytest.mark.parametrize("count", [0, 4, 8])
def test_a_job_for_none_or_for_all_changes_nothing(computer, count):
    with devices.taken(count):
        assert devices.VISIBLE not in os.environ and not devices.LOCKS.exists()


def test_hardware_names_the_processor_and_the_gpus_that_are_visible(computer, monkeypatch):
    assert devices.hardware() == f"{devices.processor()}, 4 x {NAME}"
    monkeypatch.setenv(devices.VISIBLE, f"1,{UUIDS[3]}")
    assert devices.hardware() == f"{devices.processor()}, 2 x {NAME}"
    monkeypatch.setenv(devices.VISIBLE, "")
    assert devices.hardware() == devices.processor()
