"""What the Snakefile does before the first job, in real runs of a suite that fetches one file from a mirror folder."""

import hashlib
import json
import re
import shlex
import subprocess
import sys

import pytest
import yaml
from checkout import copy_of, environment

from coevolve.assets import images
from coevolve.config.loading import load_suite
from coevolve.pipeline.job_file import JobFile, planned_file
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stage import files_of
from coevolve.storage.locks import ProcessLock

NOTE = b"a note\n"
SUITE = f"""
extends: smoke.yaml
suite: mine
sources:
  note: {{file: note.txt, url: https://nowhere.invalid, sha256: {hashlib.sha256(NOTE).hexdigest()}, licence: none}}
"""
TARGET = "data/mirror/note/note.txt"


@pytest.fixture(scope="module")
def repo(root, tmp_path_factory):
    repo = copy_of(root, tmp_path_factory.mktemp("repo") / "repo")
    suite = repo / "my {suites}/mine.yaml"
    suite.parent.mkdir()
    suite.write_text(SUITE)
    machine = repo / "my {suites}/machine.yaml"
    text = (repo / "configs/machines/cpu.yaml").read_text()
    machine.write_text(f"{text.replace('launch: null', 'launch: my {suites}/none.yaml')}\nvllm: {{max_num_seqs: 7}}\n")
    (repo / "mirror/note").mkdir(parents=True)
    (repo / "mirror/note/note.txt").write_bytes(NOTE)
    return repo


def snakemake(repo, *arguments, suite="my {suites}/mine.yaml", settings=(), profile="smoke", path=""):
    machine = [] if "/" not in suite else ["machine=my {suites}/machine.yaml"]
    command = [sys.executable, "-m", "snakemake", "--profile", profile, "--config", f"suite={suite}", *machine]
    variables = {**environment(repo), "COEVOLVE_MIRROR": str(repo / "mirror")}
    variables["PATH"] = f"{path}{variables['PATH']}"
    return subprocess.run(
        [*command, *settings, *arguments], cwd=repo, env=variables, capture_output=True, text=True, check=False
    )


def test_two_suites_do_not_fetch_the_same_file_at_once(repo):
    """Snakemake would delete what the other has fetched. The paths of suite and machine have braces."""
    other, unrelated = (ProcessLock(repo / f"data/mirror/.{name}.lock") for name in ("note", "spider"))
    assert other.acquire() and unrelated.acquire()
    refused = snakemake(repo, "--", TARGET)
    last = "coevolve: data/mirror/note: the snakemake of another suite fetches this; wait for it or end it."
    assert refused.returncode != 0 and refused.stderr.splitlines()[-1] == last
    other.release()
    done = snakemake(repo, "--", TARGET)  # while the other suite fetches another file
    assert done.returncode == 0, done.stderr
    assert (repo / TARGET).read_bytes() == NOTE
    (planned,) = (repo / "data/mirror/.jobs").rglob("*.json")
    assert json.loads(planned.read_text())["vllm"]["max_num_seqs"] == 7, "the machine's own devices"
    assert other.acquire(), "the lock ends with the run"
    nothing = snakemake(repo, "--", TARGET)
    other.release()
    assert nothing.returncode == 0 and "Nothing to be done" in nothing.stderr, (
        "a run that fetches nothing is not held up"
    )
    (repo / "my {suites}/another.yaml").write_text(SUITE.replace("suite: mine", "suite: another"))
    shared = snakemake(repo, "--", TARGET, suite="my {suites}/another.yaml")
    assert shared.returncode == 0 and "Nothing to be done" in shared.stderr, "no suite fetches what another has"


def test_containers_without_images_are_a_sentence(repo):
    done = snakemake(repo, "--sdm", "apptainer", "--dry-run", suite="smoke")
    assert done.returncode != 0 and "Traceback" not in done.stderr and "Snakefile" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("coevolve: containers/images.lock: no images were built here; run")


def test_a_stage_on_several_nodes_is_refused_in_images_before_any_job(repo, monkeypatch):
    """Eight processes on two nodes, as 13B may be trained."""
    monkeypatch.chdir(repo)
    for name in ("envs", "train", "sample"):
        (repo / f"{name}.sif").write_text(name)
        images.add(name, repo / f"{name}.sif", "c" * 40, "base")
    machine = repo / "configs/machines/two_nodes.yaml"
    sft = {"gpus": 4, "nodes": 2, "processes": 8, "cpus": 32, "memory_gb": 400, "minutes": 240}
    machine.write_text(yaml.safe_dump({"extends": "h100.yaml", "containers": True, "stages": {"sft": sft}}))
    done = snakemake(repo, suite="smoke", settings=["machine=two_nodes"])
    images.LOCK.unlink()
    sentence = (
        "coevolve: configs/machines/two_nodes.yaml: `stages.sft.nodes` is more than 1, and images contain no srun"
    )
    assert done.returncode != 0 and done.stderr.splitlines()[-1].startswith(sentence), done.stderr
    assert not (repo / "results/smoke/data").exists()


def test_jobs_of_another_python_are_not_forked_from_this_one(repo, tmp_path):
    """The interpreter of the jobs writes down whether they were given a server."""
    written, python = tmp_path / "server", tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "server: $COEVOLVE_JOB_SERVER" > {written}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (repo / TARGET).unlink(missing_ok=True)
    done = snakemake(repo, "--", TARGET, settings=[f"python={python}"])
    assert done.returncode == 0, done.stderr
    assert written.read_text() == "server: \n"


def test_stages_that_sample_with_vllm_start_in_its_environment(repo):
    own = repo / ".venv_sample/bin/python"
    own.parent.mkdir(parents=True)
    own.symlink_to(sys.executable)
    done = snakemake(repo, "--dry-run", "-p", suite="smoke", settings=["sampler={engine: vllm}"])
    text = done.stdout + done.stderr
    commands = re.findall(r'"\$\{COEVOLVE_PYTHON:-(.*?)\}" -m coevolve job .* > results/smoke/logs/(\w+)/', text)
    started = {stage: python for python, stage in commands}
    assert started["rollout"] == started["evaluate"] == str(own)
    assert started["data"] == started["sft"] == started["train"] == sys.executable


def test_a_cluster_without_a_site_is_a_sentence(repo):
    done = snakemake(repo, "--dry-run", suite="smoke", profile="slurm")
    assert done.stderr.splitlines()[-1].startswith("coevolve: site.yaml: no such file; run `make cluster`, or")


def test_without_slurm_a_job_takes_as_many_gpus_as_it_requests(repo, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho GPU-1\necho GPU-2\n")
    tool.chmod(0o755)
    text = (repo / "configs/machines/cpu.yaml").read_text()
    text = text.replace("gpus_per_node: 0", "gpus_per_node: 2").replace("default: {", "default: {gpus: 1, ")
    (repo / "two.yaml").write_text(text)
    (repo / TARGET).unlink(missing_ok=True)
    done = snakemake(repo, "--", TARGET, settings=["machine=two.yaml"], profile="one-node", path=f"{tmp_path}:")
    assert done.returncode == 0, done.stderr
    (log,) = (repo / "results/mine/logs/download").rglob("*.log")
    assert "GPU 0 of 2" in log.read_text() or "GPU 1 of 2" in log.read_text()


def test_the_command_line_of_a_job_stays_short_with_many_seeds_and_starts(root, tmp_path):
    """bash refuses a word of 128 KiB: the names of a job's inputs are in its file."""
    plan = Plan(load_suite("paper", [f"seeds={[*range(25)]}"]), root=str(tmp_path))
    job = plan.products["regime"]
    assert len(" ".join(files_of(job.inputs))) > 2**17
    names = [str(planned_file(each)) for each in plan.jobs()]
    assert len({*names}) == len(names) and max(map(len, names)) < 200 + len(str(tmp_path))
    file = planned_file(job)
    JobFile.of(plan, job).write(file)
    words = [sys.executable, "-m", "coevolve", "job", str(file)]
    done = subprocess.run(["bash", "-c", shlex.join(words)], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "/records.jsonl: input `records` does not exist; run the stage that makes it." in done.stderr
