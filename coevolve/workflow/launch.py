"""One stage in several processes: the same command once per device, under accelerate, on one node or on many.

With `--processes 8 --launch configs/accelerate/zero3.yaml` the command does not run its stage: it starts itself 8 times
and waits. The first process writes the result, the others help to compute it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from coevolve.errors import UserError
from coevolve.storage import files
from coevolve.workflow.stage_table import STAGES

#: What the parent tells its processes, and the command that starts one parent per node tells those parents.
_FILE, _TOKEN = "COEVOLVE_LAUNCH_FILE", "COEVOLVE_LAUNCH_TOKEN"
_NODES, _MAIN = "COEVOLVE_LAUNCH_NODES", "COEVOLVE_LAUNCH_MAIN"
_ON_CPU = "ACCELERATE_USE_CPU"


@dataclass(frozen=True)
class Launch:
    """`processes` in all, evenly over `nodes`, run as the accelerate config `file` says."""

    file: Path
    processes: int
    nodes: int

    @property
    def per_node(self) -> int:
        """Processes, and so devices, of one node."""
        return self.processes // self.nodes


@dataclass(frozen=True)
class Place:
    """A process among those that run one stage together: `rank` of `processes`, of which the first writes.

    `file` is the sha256 of the launch file and `token` the launch's own name; both are empty for a process alone.
    """

    rank: int
    processes: int
    nodes: int
    file: str
    token: str

    @classmethod
    def here(cls) -> Place:
        """The place that the launcher gave this process."""
        given = (("RANK", "0"), ("WORLD_SIZE", "1"), ("GROUP_WORLD_SIZE", "1"))
        rank, processes, nodes = (int(os.environ.get(name, alone)) for name, alone in given)
        return cls(rank, processes, nodes, os.environ.get(_FILE, ""), os.environ.get(_TOKEN, ""))

    @property
    def note(self) -> dict[str, Any]:
        """What may move a float; nothing for a process alone."""
        launched = {"processes": self.processes, "nodes": self.nodes, "file": self.file}
        return {"launch": launched} if self.processes > 1 else {}


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Leave an error where the parent finds it, so that what all processes meet is said once, by the parent.

    In a process that nothing launched an error is just raised.
    """
    if "TORCHELASTIC_ERROR_FILE" not in os.environ:
        yield
        return
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    try:
        yield
    except UserError as error:
        get_error_handler().record_exception(error)
        sys.exit(2)
    except Exception as error:
        get_error_handler().record_exception(error)
        raise


def launch(asked: Launch, stage: str, arguments: list[str], threads: int) -> None:
    """Run `coevolve stage <stage> <arguments>` in all processes, to their end; `threads` are a node's.

    Raises `UserError` with the sentence of the process that failed first, and before anything starts if the launch
    file, the nodes or the devices are not what was asked for.
    """
    kind = _kind(asked, stage)
    command = ["-m", "coevolve", "stage", stage, *arguments]
    if asked.nodes > 1 and _MAIN not in os.environ:
        _over_nodes(asked, command)
        return
    _require_devices(asked, kind)
    os.environ[_FILE] = files.sha256(asked.file)
    os.environ.setdefault(_TOKEN, uuid.uuid4().hex)
    # What argparse reads last counts: each process runs the stage itself, on its share of the threads.
    own = ["--processes", "1", "--nodes", "1", "--threads", str(max(1, threads // asked.per_node))]
    _on_this_node(asked, ["--config_file", str(asked.file), *_rendezvous(asked), *command, *own])


def _kind(asked: Launch, stage: str) -> str:
    """How the launch file distributes: MULTI_GPU, DEEPSPEED or FSDP."""
    from accelerate.commands.config.config_args import load_config_from_file  # type: ignore[import-untyped]

    if stage not in STAGES or not STAGES[stage].launchable:
        able = ", ".join(name for name, declared in STAGES.items() if declared.launchable)
        raise UserError(f"--processes {asked.processes}: `{stage}` runs in one; only {able} divide work.")
    if not asked.file.is_file():
        raise UserError(f"--launch {asked.file}: no such file; name one of configs/accelerate/*.yaml.")
    if asked.processes % asked.nodes:
        raise UserError(
            f"--processes {asked.processes} is no multiple of --nodes {asked.nodes}; change one of the two."
        )
    try:
        kind = str(load_config_from_file(str(asked.file)).distributed_type.value)
    except (ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise UserError(f"{asked.file}: no config of accelerate ({error}); correct it.") from None
    if kind == "DEEPSPEED" and importlib.util.find_spec("deepspeed") is None:
        raise UserError(f"{asked.file}: DeepSpeed is not installed; install `coevolve[deepspeed]` or take fsdp.yaml.")
    return kind


def _require_devices(asked: Launch, kind: str) -> None:
    """Raises `UserError` unless each process of this node has a device; on CPUs only if that was asked for."""
    import torch

    if _on_cpus():
        if kind == "FSDP":
            raise UserError(f"{asked.file}: FSDP would be DDP without a GPU; take ddp.yaml or zero3.yaml.")
        if kind == "DEEPSPEED":  # which would stay out of accelerate's CPU mode: hidden GPUs have the same effect
            del os.environ[_ON_CPU]
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return
    seen = torch.cuda.device_count()
    if seen < asked.per_node:
        where, wanted = os.environ.get("SLURMD_NODENAME", socket.gethostname()), asked.per_node
        raise UserError(
            f"--processes {asked.processes}: {wanted} devices wanted on {where}, {seen} seen; ask the scheduler for"
            f" {wanted}, or set {_ON_CPU}=1 to run on CPUs."
        )


def _on_cpus() -> bool:
    return os.environ.get(_ON_CPU, "").lower() in ("1", "true", "yes")


def _rendezvous(asked: Launch) -> list[str]:
    """Where the processes meet: a free port of this machine, or the main node's address."""
    processes = ["--num_processes", str(asked.processes), "--num_machines", str(asked.nodes)]
    if asked.nodes == 1:
        return [*processes, "--main_process_port", "0"]
    host, _, port = os.environ[_MAIN].rpartition(":")
    rank = os.environ[_NODES].split(",").index(os.environ["SLURMD_NODENAME"])
    return [*processes, "--machine_rank", str(rank), "--main_process_ip", host, "--main_process_port", port]


def _on_this_node(asked: Launch, options: list[str]) -> None:
    from accelerate.commands.launch import launch_command, launch_command_parser  # type: ignore[import-untyped]
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        launch_command(launch_command_parser().parse_args(options))
    except ChildFailedError as error:
        raise UserError(_sentence(error.failures, asked)) from None
    except SignalException as error:
        raise UserError(f"ended by {error.sigval.name}; the same command goes on from the last checkpoint.") from None


def _sentence(failures: Mapping[int, Any], asked: Launch) -> str:
    """What went wrong first: a sentence for the user, else a killed process, else an exception.

    The processes that lose their partner fail too, within the same second, and some of them by a signal of their own.
    """
    rank, failure = min(failures.items(), key=lambda item: (_order(item[1]), item[1].timestamp))
    text = _text(failure)
    who = f"process {rank} of {asked.processes}"
    if text.startswith("UserError: "):
        return text.removeprefix("UserError: ")
    if failure.exitcode < 0:
        again = "the same command goes on from the last checkpoint"
        return f"{who} was killed by {failure.signal_name()} (out of memory?) and the others ended with it; {again}."
    return f"{who} failed: {text}; its traceback is above."


def _order(failure: Any) -> int:
    if _text(failure).startswith("UserError: "):
        return 0
    signals = {"SIGKILL": 1, "SIGTERM": 3}  # what nothing does to itself; what the launcher sends to those left over
    return signals.get(failure.signal_name(), 2) if failure.exitcode < 0 else 3


def _text(failure: Any) -> str:
    return str(failure.message if isinstance(failure.message, str) else failure.message["message"])


def _over_nodes(asked: Launch, arguments: list[str]) -> None:
    """Start this command once on each node of the Slurm job; the node this process runs on is the main one."""
    job, main = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURMD_NODENAME")
    if job is None or main is None or shutil.which("srun") is None:
        raise UserError(f"--nodes {asked.nodes}: no Slurm job here; start it with sbatch or srun on that many nodes.")
    names = _nodes_of(job)
    if len(names) < asked.nodes:
        raise UserError(f"--nodes {asked.nodes}: job {job} has {len(names)} ({', '.join(names)}); ask for more nodes.")
    chosen = [main, *(name for name in names if name != main)][: asked.nodes]
    own = {_NODES: ",".join(chosen), _MAIN: f"{socket.gethostname()}:{_free_port()}", _TOKEN: uuid.uuid4().hex}
    command = [*_step(asked, job, chosen), sys.executable, *arguments]
    status = subprocess.run(command, env={**_outside_steps(), **own}, check=False).returncode
    if status:
        sys.exit(2)  # the node that failed has said why


def _step(asked: Launch, job: str, nodes: list[str]) -> list[str]:
    """Srun with one task on each of the nodes, beside whatever step this process is in."""
    size = [f"--nodes={asked.nodes}", f"--ntasks={asked.nodes}", "--ntasks-per-node=1", f"--nodelist={','.join(nodes)}"]
    # Left to itself Slurm gives one node of a step all of its devices and the other a single one.
    devices = [] if _on_cpus() else [f"--gpus-per-node={asked.per_node}"]
    return ["srun", f"--jobid={job}", "--overlap", "--kill-on-bad-exit=1", *size, *devices]


def _outside_steps() -> dict[str, str]:
    """The environment without what describes this step: its tasks, CPUs and devices are not the next one's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SRUN_", "SBATCH_"))}
    return kept | {name: os.environ[name] for name in ("SLURM_JOB_ID", "SLURM_CONF") if name in os.environ}


def _nodes_of(job: str) -> list[str]:
    """Names of the job's nodes, in Slurm's order; asked of Slurm, since a step of one node knows only its own."""
    listed = _slurm("squeue", "--job", job, "--noheader", "--format", "%N")
    return _slurm("scontrol", "show", "hostnames", listed).split()


def _slurm(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{command[0]}: {done.stderr.strip()}; is this a job of that Slurm?")
    return done.stdout.strip()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])
