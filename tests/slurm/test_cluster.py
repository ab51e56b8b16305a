"""From a clone to results on a real Slurm: `make cluster`, the check of a node, and the main process as a job."""

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from assets.hubmodel import write_model
from assets.hubserver import REVISION
from slurm.harness import PRETRAINED, QUICK, copied, restarts, same, until

from coevolve.assets import images
from coevolve.pipeline.registry import STAGES

pytestmark = pytest.mark.slow
USER = pwd.getpwnam("nobody")
#: An engine that runs the job's words outside of the image, whose name it gives to them, as the real one does.
ENGINE = """#!/bin/bash
[ "$1" = --version ] && { echo apptainer version 1.4.5; exit; }
while [[ $1 != *.sif ]]; do [ "$1" != --bind ] || [ -e "$2" ] || exit 255; shift; done
export APPTAINER_CONTAINER=$1 COEVOLVE_PYTHON=%s
shift
exec "$@"
"""


class OrdinaryUser:
    """A clone of the kit that belongs to an ordinary user, and what this user runs in it."""

    def __init__(self, cluster, repo, folder, suite):
        self.cluster, self.repo, self.suite = cluster, copied(repo, folder / "clone"), suite
        for name in (
            "init --quiet",
            "add coevolve configs profiles",
            "-c user.name=a -c user.email=a@b commit --quiet --message=all",
        ):
            subprocess.run(["git", *name.split()], cwd=self.repo, check=True, capture_output=True)
        self.bin = folder / "bin"
        self.bin.mkdir()
        for path in (folder, *folder.rglob("*")):
            os.chown(path, USER.pw_uid, USER.pw_gid, follow_symlinks=False)
        # The interpreter of this environment may lie in a home folder that others cannot enter.
        system = Path(f"/usr/bin/python3.{sys.version_info.minor}")
        self.python = str(system if system.exists() else sys.executable)

    def ask(self, *words, **variables):
        packages = next(path for path in sys.path if path.endswith("site-packages"))
        own = {"HOME": str(self.repo), "PYTHONPATH": f"{self.repo}:{packages}", "ACCELERATE_USE_CPU": "1"}
        own |= {"APPTAINERENV_ACCELERATE_USE_CPU": "1"}  # in an image
        own |= {"PATH": f"{self.bin}:{self.cluster.environment['PATH']}"}
        as_user = ["setpriv", f"--reuid={USER.pw_uid}", f"--regid={USER.pw_gid}", "--clear-groups"]
        command, variables = [*self.cluster.enter, *as_user, *words], self.cluster.environment | own | variables
        return subprocess.run(command, cwd=self.repo, env=variables, capture_output=True, text=True, check=False)

    def make_cluster(self, *words, status=0):
        site = ["--suite", self.suite, "--machine", "tests", *words]
        done = self.ask(self.python, "-m", "coevolve", "cluster", *site)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    def snakemake(self, *words, **variables):
        command = [self.python, "-m", "snakemake", "--profile", "slurm", *QUICK, "--config", f"suite={self.suite}"]
        return self.ask(*command, *words, **variables)

    def provenances(self):
        return [json.loads(path.read_text()) for path in (self.repo / "results" / self.suite).rglob("provenance.json")]


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are their owner's alone
        yield Path(folder)


@pytest.fixture
def user(cluster, repo, folder):
    return OrdinaryUser(cluster, repo, folder, "slurm")


def test_two_commands_of_an_ordinary_user_end_with_the_tables(user):
    first = user.make_cluster()
    assert "gpu: h100" in first and "site.yaml, extending configs/machines/tests.yaml" in first
    assert "Nothing was left to set up." in user.make_cluster()
    done = user.snakemake("--", "all")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (user.repo / "results/slurm/paper/table1/table1.md").exists()
    records = user.provenances()
    assert {record["dirty"] for record in records} == {False}, "the site is no uncommitted change"
    (costs,) = (record for record in records if record["stage"] == "costs")
    assert costs["notes"]["machine"]["label"] == "nodes of 8 h100" and "site.yaml" in costs["inputs"]


def test_with_an_engine_and_images_every_stage_runs_in_its_own(user):
    engine = user.bin / "apptainer"
    engine.write_text(ENGINE % user.python)
    engine.chmod(0o755)
    code = "from coevolve.assets import images\nfrom pathlib import Path\nfor name in ('envs', 'train', 'sample'):\n"
    code += "    Path(f'{name}.sif').write_text(name)\n    images.add(name, Path(f'{name}.sif'), 'c' * 40, 'base')\n"
    assert user.ask(user.python, "-c", code).returncode == 0
    assert "containers: True" in user.make_cluster()
    done = user.snakemake("--", PRETRAINED)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = {record["stage"]: record["container"].partition("-")[0] for record in user.provenances()}
    assert ran["data"] == "envs" and ran["pretrain"] == "train"


@pytest.mark.parametrize("contained", [False, True], ids=["environments", "images"])
def test_with_all_in_a_mirror_folder_nothing_asks_another_computer(
    cluster_without_network, repo, root, folder, contained
):
    """Both commands, in a network namespace without a route; with the images that `make images` made here, if any."""
    for suite in ("tests/airgap/airgap.yaml", "tests/dag/nano.yaml"):
        shutil.copy(root / suite, repo / "configs")
    mirror = folder / "mirror"
    write_model(mirror / "models/owner--tiny" / REVISION, root / "data/sciworld/gold.jsonl")
    if contained:
        link_images(root, mirror / "images")
    cluster, user = cluster_without_network, OrdinaryUser(cluster_without_network, repo, folder, "airgap")
    before = cluster.packets_without_route()
    printed = user.make_cluster("--mirror", str(mirror))
    assert f"containers: {contained}" in printed and "1 of 1 files and models in data/mirror" in printed
    shutil.rmtree(mirror)
    done = user.snakemake("--", "all")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Co-evolving" in (user.repo / "results/airgap/paper/table1/table1.md").read_text()
    assert cluster.packets_without_route() == before, "something was to be reached outside of this computer"
    user.ask("bash", "-c", "echo > /dev/tcp/198.51.100.1/80")
    assert cluster.packets_without_route() > before, "an attempt is counted"
    records = [record for record in user.provenances() if STAGES[record["stage"]].image]
    ran = {record["stage"]: record["container"].rpartition("-")[0] for record in records}
    assert ran == {stage: STAGES[stage].image if contained else "" for stage in ran} and len(ran) > 5


def link_images(root, folder):
    """Put the images that were built in this checkout, and their lock, into a folder; skips the test without them."""
    if not shutil.which("apptainer"):
        pytest.skip("apptainer is not on PATH")
    lock = root / images.LOCK
    if not lock.exists():
        pytest.skip(f"{images.LOCK}: no images were built here; run `make images`")
    folder.mkdir()
    shutil.copy(lock, folder)
    for image in yaml.safe_load(lock.read_text())["images"].values():
        (folder / Path(image["file"]).name).symlink_to(root / image["file"])


def test_what_a_node_lacks_is_a_sentence_of_its_check(user):
    (user.repo / "data/mirror").symlink_to("/scratch/of/nobody")
    words = ["coevolve", "doctor", "--node", "--suite", "slurm", "--machine", "tests"]
    done = user.ask("srun", "--gpus=1", "--mem=4G", "--time=5", user.python, "-m", *words, ACCELERATE_USE_CPU="")
    failed = [line for line in done.stdout.splitlines() if not line.startswith("ok ")]
    assert done.returncode != 0, done.stdout + done.stderr
    assert "data/mirror links to /scratch/of/nobody, which does not exist; make it." in failed[0]
    assert any("--gpus 8: Slurm job" in line for line in failed), failed


@pytest.mark.parametrize("profile", ["slurm", "one-node"])
def test_the_main_process_as_a_job_continues_after_its_time_limit(run, alone, profile):
    """Slurm sends the signal ahead of the limit; here it is sent once a training has written a checkpoint."""
    options = QUICK if profile == "slurm" else ["--cores", "2"]
    words = ["--profile", profile, *options, "--config", "suite=slurm", "machine=tests", "--", PRETRAINED]
    path = f"{Path(sys.executable).parent}:{run.cluster.environment['PATH']}"
    variables = run.cluster.environment | {"PYTHONPATH": str(run.repo), "HOME": str(run.repo), "PATH": path}
    submit = ["sbatch", "--parsable", "--gpus=8", "profiles/main.sh", *words]
    done = subprocess.run(submit, cwd=run.repo, env=variables, capture_output=True, text=True, check=True)
    job, frozen = done.stdout.strip(), run.frozen()
    run.cluster.ask("scancel", "--batch", "--signal=USR1", job)
    frozen.resume()
    until(lambda: restarts(run, job) == 1, "the job to go back into the queue")
    until(lambda: job in run.cluster.jobs("completed,failed,cancelled"), "the job's end")
    log = (run.repo / "coevolve_main.log").read_text()
    assert job in run.cluster.jobs("completed"), log
    assert f"job {job} goes back into the queue" in log and "resuming from checkpoint-" in run.log()
    assert same(run, alone)
