"""Jobs that a job server forks: their output, status, code and end are those of a process of their own."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from checkout import copy_of, environment, heed_ctrl_c

from coevolve.config.loading import load_suite
from coevolve.pipeline.job_file import JobFile
from coevolve.pipeline.job_server import VARIABLE, forward
from coevolve.pipeline.plan import Plan
from coevolve.watch import job_text

#: Starts a server, prints its variable, and waits for the end of its input.
SNAKEMAKE = """
import os, sys
from coevolve.pipeline import job_server
server = job_server.JobServer(["sft", "train"], {})
print(os.environ[job_server.VARIABLE], flush=True)
sys.stdin.read()
server.stop()
"""
#: A command line that writes its process id to a file and sleeps.
SLEEP = """
import os, time
def main(arguments=None):
    open({!r}, "w").write(str(os.getpid()))
    time.sleep(600)
"""
PARTS = ["-m", "coevolve", "job", "sft.json"]


@pytest.fixture(scope="module")
def repo(root, tmp_path_factory):
    """A copy of the kit, with a job of which no input exists."""
    copy = copy_of(root, tmp_path_factory.mktemp("repo"))
    plan = Plan(load_suite("smoke"))
    job = plan.require("sft", {"model": "tiny", "env": "webshop", "branch": "base/seed0", "agent": "target"})
    JobFile.of(plan, job).write(copy / PARTS[-1])
    return copy


@pytest.fixture
def server(repo):
    process = subprocess.Popen(
        [sys.executable, "-c", SNAKEMAKE],
        cwd=repo,
        env=environment(repo),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    value = process.stdout.readline().decode().strip()
    yield process, {**environment(repo), VARIABLE: value}
    process.communicate()


def sft(repo, variables):
    return subprocess.run(
        [sys.executable, *PARTS], cwd=repo, env=variables, capture_output=True, text=True, check=False
    )


def test_a_long_name_of_the_temporary_folder_starts_it_too(repo, tmp_path):
    """A socket's name has at most 107 bytes; Slurm and CI have such folders."""
    long = tmp_path / ("long" * 25)
    long.mkdir()
    variables = {**environment(repo), "TMPDIR": str(long)}
    done = subprocess.run(
        [sys.executable, "-c", SNAKEMAKE],
        cwd=repo,
        env=variables,
        input="",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.startswith("sft,train:/tmp/"), done.stderr


def test_a_job_has_the_clients_output_status_and_the_code_of_its_start(repo, server):
    process, variables = server
    alone = sft(repo, environment(repo))
    assert alone.returncode == 2 and "input `experts` does not exist" in alone.stderr
    forked = sft(repo, variables)
    assert (forked.returncode, forked.stdout, forked.stderr) == (2, alone.stdout, alone.stderr)
    module = repo / "coevolve/cli/__init__.py"
    text = module.read_text()
    edit = """f"{error} {os.environ['OF_CLIENT']} pid {os.getppid()}\""""
    module.write_text(text.replace('f"coevolve: {error}"', edit))
    try:
        edited = [sft(repo, variables | {"OF_CLIENT": name}).stderr for name in ("first", "second")]
    finally:
        module.write_text(text)
    parents = {int(line.rsplit(" pid ", 1)[1]) for line in edited}
    assert [line.rsplit(" ", 3)[1] for line in edited] == ["first", "second"]
    assert parents < {each.pid for each in psutil.Process(process.pid).children(recursive=True)}, edited


def test_a_killed_client_ends_its_job_and_the_server_goes_on(repo, server, tmp_path):
    _, variables = server
    client, job = sleeping_job(repo, variables, tmp_path)
    client.kill()
    client.wait()
    wait_for_end(job)
    assert sft(repo, variables).returncode == 2


def test_a_client_that_ends_before_it_asks_leaves_the_server_alive(repo, server):
    process, variables = server
    for text in (b"", b"half a requ"):
        with socket.socket(socket.AF_UNIX) as client, Path(os.devnull).open("wb") as stream:
            client.connect(variables[VARIABLE].partition(":")[2])
            if text:
                socket.send_fds(client, [b"\n"], [stream.fileno(), stream.fileno()])
                client.sendall(text)
    (alive,) = psutil.Process(process.pid).children()
    assert sft(repo, variables).returncode == 2
    assert alive.is_running() and alive.status() != psutil.STATUS_ZOMBIE


def test_a_server_that_ends_before_it_answers_is_none(tmp_path):
    path, job = tmp_path / "socket", tmp_path / "sft.json"
    job.write_text('{"stage": "sft"}')
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        ended = threading.Timer(0.5, listener.close)
        ended.start()
        assert forward(f"sft:{path}", ["job", str(job)]) is None
        ended.join()


def test_a_server_runs_the_jobs_of_its_stages_alone(tmp_path):
    """No socket is looked for."""
    job, other = tmp_path / "job.json", tmp_path / "other.json"
    job.write_text('{"stage": "pairs"}')
    other.write_text("[]")
    for words in (["job", str(job)], ["job", str(other)], ["job", str(tmp_path / "none")], ["stage", "sft"], []):
        assert forward("sft:", words) is forward("sft:/dev/null", words) is None


def test_a_client_that_ctrl_c_ends_leaves_no_traceback(repo, server, tmp_path):
    _, variables = server
    log = tmp_path / "job.log"
    with log.open("w") as stream:
        client, job = sleeping_job(repo, variables, tmp_path, stderr=stream)
        client.send_signal(signal.SIGINT)
        assert client.wait() == 128 + signal.SIGINT
    wait_for_end(job)
    assert job_text.failure(log) is None


def test_a_killed_job_has_a_sentence(repo, server, tmp_path):
    """As one that the kernel kills when memory runs out, which says nothing itself."""
    _, variables = server
    log = tmp_path / "job.log"
    with log.open("w") as stream:
        client, job = sleeping_job(repo, variables, tmp_path, stderr=stream)
        job.kill()
        assert client.wait() == 256 - signal.SIGKILL
    assert "memory runs out" in job_text.failure(log)


def test_a_job_outlives_a_killed_snakemake_and_the_server_ends_with_it(repo, server, tmp_path):
    snakemake, variables = server
    client, job = sleeping_job(repo, variables, tmp_path)
    (process,) = psutil.Process(snakemake.pid).children()
    snakemake.kill()
    snakemake.wait()
    time.sleep(2)
    assert job.is_running() and client.poll() is None
    job.send_signal(signal.SIGTERM)
    assert client.wait() == 256 - signal.SIGTERM
    wait_for_end(process)
    assert not Path(variables[VARIABLE].partition(":")[2]).parent.exists()
    assert sft(repo, variables).returncode == 2, "without its server, a client runs the job itself"


def wait_for_end(process):
    """Of a process that perhaps nobody asks for its exit status: a zombie has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.05)


def sleeping_job(repo, variables, tmp_path, **streams):
    """A client and its job, which sleeps after its imports."""
    module, note = repo / "coevolve/cli/__init__.py", tmp_path / "pid"
    text = module.read_text()
    module.write_text(SLEEP.format(str(note)))
    try:
        client = subprocess.Popen([sys.executable, *PARTS], cwd=repo, env=variables, preexec_fn=heed_ctrl_c, **streams)
        while not (note.exists() and note.read_text()):
            assert client.poll() is None
            time.sleep(0.05)
    finally:
        module.write_text(text)
    assert int(note.read_text()) != client.pid != os.getpid()
    return client, psutil.Process(int(note.read_text()))
