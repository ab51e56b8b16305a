"""A Slurm for the session, and repositories to run in."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from checkout import copy_of, environment
from slurm.harness import SNAKEMAKE, Cluster, Run, copied

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two nodes of eight fake GPUs each, for the session; all users may enter its folder."""
    yield from _cluster()


@pytest.fixture
def cluster_without_network() -> Iterator[Cluster]:
    """Another such Slurm, in a network namespace with a loopback device only, and thus without a route."""
    # Slurm finds the name of this computer only if that has another address than 127.0.0.1.
    up = 'ip link set lo up && ip address add 192.0.2.1/32 dev lo && exec "$@"'
    yield from _cluster("unshare", "--net", "sh", "-c", up, "sh")


@pytest.fixture(scope="session")
def repo(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working tree's own files, with the tests' suite and machine."""
    target = copy_of(root, tmp_path_factory.mktemp("repo"))
    shutil.copy(HERE / "suite.yaml", target / "configs/slurm.yaml")
    shutil.copy(HERE / "machine.yaml", target / "configs/machines/tests.yaml")
    return target


@pytest.fixture(scope="session")
def alone(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository after a run on this machine alone, without Slurm."""
    return _local(copied(repo, tmp_path_factory.mktemp("alone")))


@pytest.fixture(scope="session")
def begun(alone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository with all that comes before pre-training."""
    target = copied(alone, tmp_path_factory.mktemp("begun"))
    shutil.rmtree(target / "results/slurm/tiny/sciworld/base/pretrained")
    for folder in (target / "results/slurm/tiny/sciworld/base/seed0", target / "results/slurm/tiny/sciworld/coevolve"):
        shutil.rmtree(folder)
    shutil.rmtree(target / "results/slurm/paper")
    return target


@pytest.fixture
def run(cluster: Cluster, begun: Path, tmp_path: Path) -> Iterator[Run]:
    """A run about to pre-train; whatever a failed test leaves behind is ended."""
    own = Run(cluster, copied(begun, tmp_path / "repo"))
    yield own
    cluster.ask("scancel", "--user=root")
    for process in own.training():
        with contextlib.suppress(psutil.Error):
            process.kill()


def _local(repo: Path) -> Path:
    command = [*SNAKEMAKE, "--profile", "smoke", "--config", "suite=slurm"]
    done = subprocess.run(command, cwd=repo, env=environment(repo), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return repo


def _cluster(*prefix: str | Path) -> Iterator[Cluster]:
    state = Path(tempfile.mkdtemp(prefix="cluster-"))
    state.chmod(0o755)
    done = subprocess.run([*prefix, HERE / "up.sh", state], capture_output=True, text=True, check=False)
    if done.returncode == 2:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    daemon = (state / "slurmctld.pid").read_text().strip()
    yield Cluster(state, ("nsenter", f"--net=/proc/{daemon}/ns/net") if prefix else ())
    subprocess.run([HERE / "down.sh", state], check=True)
    shutil.rmtree(state)
