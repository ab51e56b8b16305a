"""A Slurm of our own, and a run of Snakemake on it that a test can watch and harm."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import yaml
from checkout import decided, heed_ctrl_c

SNAKEMAKE = [sys.executable, "-m", "snakemake"]
#: What a test cannot wait for; a user's profile has the plugin's own 40 seconds.
QUICK = ["--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "5"]
NAME = "tiny/sciworld/base/pretrained/policy/target"
TARGET, JOB = f"results/slurm/{NAME}", f"results/slurm/.jobs/{NAME}.json"
PRETRAINED = f"{TARGET}/policy.json"


@dataclass(frozen=True)
class Cluster:
    """A Slurm of our own: its commands, the environment in which they find it, and the words before a command that
    bring it into the network namespace of the daemons, if that is another.
    """

    state: Path
    enter: tuple[str, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.state / 'bin'}:{os.environ['PATH']}"
        return {**os.environ, "SLURM_CONF": str(self.state / "slurm.conf"), "PATH": path}

    def ask(self, *command: str) -> str:
        words = [*self.enter, *command]
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def packets_without_route(self) -> int:
        """How many packets were to leave the daemons' network namespace: attempts to reach another computer."""
        lines = self.ask("cat", "/proc/net/snmp").splitlines()
        names, values = (line.split() for line in lines if line.startswith("Ip: "))
        version6 = dict(line.split() for line in self.ask("cat", "/proc/net/snmp6").splitlines())
        return int(dict(zip(names, values, strict=True))["OutNoRoutes"]) + int(version6.get("Ip6OutNoRoutes", 0))

    def jobs(self, state: str, shown: str = "%i") -> list[str]:
        """The jobs in a state, as squeue shows them."""
        return self.ask("squeue", "--noheader", f"--states={state}", f"--format={shown}").splitlines()


@dataclass
class Run:
    """`snakemake --profile slurm` in a repository, up to the pre-trained policy unless it is given other words."""

    cluster: Cluster
    repo: Path
    variables: dict[str, str] = field(default_factory=dict)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.repo / "said.log").open("ab") as said:
            options = {"cwd": self.repo, "env": self._environment(), "preexec_fn": heed_ctrl_c}
            return subprocess.Popen(self._command(words), **options, stdout=said, stderr=said)

    def finish(self, *words: str) -> str:
        """Run to the end, which must be a good one; what was said."""
        return ended(self.start(*words), self.repo)

    def frozen(self) -> psutil.Process:
        """The pre-training job's own process, stopped once it has written a checkpoint: it hangs until it is ended."""
        saved = self.repo / Path(TARGET).parent
        until(lambda: any(saved.glob(".work-target/*/checkpoint-*/trainer_state.json")), "a checkpoint")
        process = self.training()[0]
        process.suspend()
        return process

    def training(self) -> list[psutil.Process]:
        """Processes of the stage that pre-trains in this repository."""
        return [process for process in psutil.process_iter() if self._is_training(process)]

    def log(self) -> str:
        return "".join(path.read_text() for path in (self.repo / "results/slurm/logs/pretrain").rglob("*.log"))

    def _is_training(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            return words[1:5] == ["-m", "coevolve", "job", JOB] and Path(process.cwd()) == self.repo
        return False

    def _command(self, words: tuple[str, ...]) -> list[str]:
        config = ["--config", "suite=slurm", "machine=tests"]
        return [*SNAKEMAKE, "--profile", "slurm", *QUICK, *config, *(words or ("--", PRETRAINED))]

    def _environment(self) -> dict[str, str]:
        return {**self.cluster.environment, "PYTHONPATH": str(self.repo), "HOME": str(self.repo), **self.variables}


def copied(repo: Path, target: Path) -> Path:
    """A repository with its results, times and all, at another place."""
    return Path(shutil.copytree(repo, target, symlinks=True, dirs_exist_ok=True))


def machine(repo: Path, **changes: object) -> None:
    """Change the tests' machine in a repository; keys of `stages` are added."""
    path = repo / "configs/machines/tests.yaml"
    raw = yaml.safe_load(path.read_text())
    raw["stages"] |= changes.pop("stages", {})
    path.write_text(yaml.safe_dump(raw | changes))


def ended(process: subprocess.Popen[bytes], repo: Path) -> str:
    """What a run said, after its good end."""
    status = process.wait()
    said = (repo / "said.log").read_text()
    assert status == 0, said[-8000:]
    return said


def until(holds: Callable[[], object], what: str, seconds: float = 1800) -> None:
    """Wait until something holds; fails after `seconds`."""
    limit = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < limit, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.02)


def results(repo: Path) -> dict[str, object]:
    """Everything a run decides, however it was divided into parts."""
    found = decided(repo / "results/slurm")
    return {name: content for name, content in found.items() if "/parts/" not in name}


def same(run: Run, other: Path) -> bool:
    """Whether the run's pre-trained policy is the other repository's."""
    return (run.repo / PRETRAINED).read_bytes() == (other / PRETRAINED).read_bytes()


def restarts(run: Run, job: str) -> int:
    """How often Slurm itself put a job back into its queue."""
    shown = run.cluster.ask("scontrol", "show", "job", job)
    return int(shown.split("Restarts=")[1].split()[0])
