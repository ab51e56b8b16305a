"""What is fetched on a login node is all that compute jobs need: they run where there is no route to anywhere."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from assets.hubmodel import write_model
from assets.hubserver import LISTING, REVISION, serving
from checkout import copy_of, environment

SNAKEMAKE = [sys.executable, "-m", "snakemake", "--profile", "smoke", "--config", "suite=airgap"]
#: Loopback only: the simulator's JVM talks to Python over it.
ALONE = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c"]


@pytest.fixture
def alone() -> list[str]:
    """The beginning of a command that runs a shell script with networking off."""
    script = "ip link set lo up && "
    done = subprocess.run([*ALONE, f"{script} ip route"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no network namespace here: {done.stderr.strip()}")
    assert done.stdout == ""
    return [*ALONE, f'{script} exec "$@"', "sh"]


@pytest.fixture
def repo(root: Path, tmp_path: Path) -> Path:
    copy = copy_of(root, tmp_path / "repo")
    for suite in ("tests/airgap/airgap.yaml", "tests/dag/nano.yaml"):
        shutil.copy(root / suite, copy / "configs")
    return copy


def coevolve(repo: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "coevolve", *arguments]
    return subprocess.run(
        command, cwd=repo, env=environment(repo) | variables, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_suite_runs_without_a_route_once_its_model_was_fetched(repo: Path, tmp_path: Path, alone: list[str]) -> None:
    published = tmp_path / "published"
    write_model(published, repo / "data/sciworld/gold.jsonl")
    verify = ["mirror", "verify", "--suite", "airgap"]
    assert "missing models.tiny" in coevolve(repo, *verify).stdout

    offline = subprocess.run([*alone, *SNAKEMAKE], cwd=repo, env=environment(repo), capture_output=True, text=True)
    assert offline.returncode != 0
    sentence = (repo / "results/airgap/logs/snapshot/models/tiny.log").read_text().strip().splitlines()[-1]
    assert sentence.startswith("coevolve: owner/tiny at 0123456789") and "COEVOLVE_MIRROR" in sentence

    with serving(published) as server:
        network = environment(repo) | {"HF_ENDPOINT": server.url}
        subprocess.run([*SNAKEMAKE, "--until", "download", "snapshot"], cwd=repo, env=network, check=True)
        assert ("GET", LISTING) in server.requests
    checked = coevolve(repo, *verify)
    assert checked.returncode == 0, checked.stdout
    assert not (repo / "results/airgap/paper").exists()

    done = subprocess.run([*alone, *SNAKEMAKE], cwd=repo, env=environment(repo), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    assert "Co-evolving" in (repo / "results/airgap/paper/table1/table1.md").read_text()
    policy = repo / "results/airgap/tiny/sciworld/base/untrained/policy/target"
    assert (policy / "model.safetensors").samefile(repo / "data/mirror/models/tiny/model.safetensors")
    assert f'"revision":"{REVISION}"' in (policy / "policy.json").read_text()


def test_stages_keep_libraries_off_the_network_and_only_downloads_may_ask_it(root: Path, tmp_path: Path) -> None:
    """Each ends before it fetches anything: no Slurm job has so many GPUs."""
    look = (
        "from coevolve import cli\n"
        "try: cli.main(ARGUMENTS)\n"
        "except SystemExit: pass\n"
        "from huggingface_hub import constants\n"
        "print(constants.HF_HUB_OFFLINE, constants.HF_HUB_DISABLE_TELEMETRY)"
    )
    set_by_the_kit = ("HF_", "TRANSFORMERS_", "DO_NOT_TRACK")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(set_by_the_kit)}
    clean |= {"SLURM_JOB_ID": "7", "ACCELERATE_USE_CPU": ""}
    offline: dict[str, str] = {}
    for stage, names in (("data", ["env=sciworld"]), ("download", ["source=spider", "file=spider_dev.sql"])):
        on = [word for name in names for word in ("--on", name)]
        arguments = ["stage", stage, "--suite", "smoke", "--out", str(tmp_path / stage), *on, "--gpus", "999"]
        script = look.replace("ARGUMENTS", repr(arguments))
        done = subprocess.run([sys.executable, "-c", script], cwd=root, env=clean, capture_output=True, text=True)
        assert "--gpus 999: Slurm job 7 has " in done.stderr
        offline[stage] = done.stdout.strip()
    assert offline == {"data": "True True", "download": "False False"}
