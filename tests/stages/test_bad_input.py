"""A machine without memory or disk ends a job in one sentence, and nothing is half-written."""

import json
import os
import resource
import signal
import subprocess
import sys
import time

import pytest


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def run(root, out):
    """Runs a stage of the smoke suite in the repository, with its result in `out`, in a process of its own."""

    def start(stage, *arguments, **options):
        command = [sys.executable, "-m", "coevolve", "stage", stage, "--suite", "smoke", "--out", out, *arguments]
        # Without bytecode: a disk that is full for a test alone would leave half a file of it in the repository.
        variables = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen(command, cwd=root, env=variables, stderr=subprocess.PIPE, text=True, **options)

    return start


def refused(process, *needles):
    """One last sentence on stderr with all the needles, and exit status 2."""
    sentence = process.communicate()[1].strip().splitlines()[-1]
    assert process.returncode == 2 and sentence.startswith("coevolve: "), sentence
    assert [needle for needle in needles if needle not in sentence] == [], sentence


@pytest.fixture
def gold(root):
    return root / "data/sciworld/gold.jsonl"


def test_a_full_disk(run, out, gold):
    def cap():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    refused(run("data", "--on", "env=sciworld", f"experts={gold}", preexec_fn=cap), "cannot be written", "make room")
    assert not out.exists() and not list(out.parent.glob("*.tmp"))


def test_a_jvm_without_memory(run, out):
    """py4j logs tracebacks of the lost connection, but the command ends with a sentence."""
    sentence = "the ScienceWorld JVM failed during making a world in a heap of 2 MB"
    refused(run("gold", "--set", "envs.sciworld.memory_mb=2", "--on", "env=sciworld"), sentence)
    assert not out.exists()


def test_a_database_server_without_memory(run, out, upstream):
    dump = upstream / "intercode/ic_spider_dbs.sql"
    settings = ("--set", f"envs.intercode_sql.dump.path={dump}", "--set", "envs.intercode_sql.server.memory_mb=10")
    process = run("data", *settings, "--on", "env=intercode_sql", f"dump={dump}")
    refused(process, "did not start", "`server.memory_mb`")
    assert not out.exists()


def test_an_interrupted_tokenizer_build_leaves_nothing_and_starts_again(run, out, gold):
    on = ("--on", "model=tiny", "--on", "env=sciworld", "--on", "branch=base/untrained", f"corpus={gold}")
    # Killed when its scratch folder is there and nothing is imported yet, then while it writes its files.
    for first in (".work-out", ".out*/*"):
        process = run("untrained", *on)
        while not list(out.parent.glob(first)):
            assert process.poll() is None
            time.sleep(0.001)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL and not out.exists()
    process = run("untrained", *on)
    assert process.communicate() and process.returncode == 0
    assert json.loads((out / "policy.json").read_text())["sha256"]
    assert list(out.parent.glob(".out*")) == []
