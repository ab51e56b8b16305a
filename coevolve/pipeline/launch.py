"""A stage on several processes, one per device, started by accelerate's launcher on one node or on several.

With `--processes 8 --launch configs/accelerate/zero3.yaml` the command does not run its job: it starts `coevolve job` 8
times and waits. All processes compute the result and rank 0 writes it.
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
from coevolve.pipeline.devices import USE_CPU, on_cpus
from coevolve.storage import files

#: Set by the launching process for the processes of its node: sha256 of the launch file, identifier of the launch.
_FILE, _LAUNCH_ID = "COEVOLVE_LAUNCH_FILE", "COEVOLVE_LAUNCH_ID"
#: Set for the launching process of each node: names of all nodes, and the main node's address.
_NODES, _MAIN_ADDRESS = "COEVOLVE_LAUNCH_NODES", "COEVOLVE_LAUNCH_MAIN"
_RESUMES = "the same command continues from the last checkpoint"


@dataclass(frozen=True)
class Launch:
    """How to launch: `processes` in all, distributed evenly over `nodes`, with the accelerate config `file`."""

    file: Path
    processes: int
    nodes: int

    @property
    def per_node(self) -> int:
        """Processes per node, which is also the number of devices needed there."""
        return self.processes // self.nodes


@dataclass(frozen=True)
class LaunchedProcess:
    """A process of those that run the stage together; rank 0 writes the result.

    `file` is the sha256 of the launch file and `launch_id` identifies the launch; both are empty in a single process.
    """

    rank: int
    world_size: int
    nodes: int
    file: str
    launch_id: str

    @classmethod
    def current(cls) -> LaunchedProcess:
        """Return the current process, from the launcher's environment variables."""
        variables = (("RANK", "0"), ("WORLD_SIZE", "1"), ("GROUP_WORLD_SIZE", "1"))
        rank, world_size, nodes = (int(os.environ.get(name, default)) for name, default in variables)
        return cls(rank, world_size, nodes, os.environ.get(_FILE, ""), os.environ.get(_LAUNCH_ID, ""))

    @property
    def note(self) -> dict[str, Any]:
        """The launch settings that change the order of floating-point sums; empty for a single process."""
        settings = {"processes": self.world_size, "nodes": self.nodes, "file": self.file}
        return {"launch": settings} if self.world_size > 1 else {}


@contextlib.contextmanager
def errors_to_launcher() -> Iterator[None]:
    """Write an error to the launcher's error file, if there is one: then only the launching process prints it."""
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


def launch(wanted: Launch, stage: str, job: Path, threads: int) -> None:
    """Run the file of a job of `stage` in all processes and wait for them; `threads` is the number per node.

    Raises `UserError` if the launch file, the nodes or the devices do not fit `wanted`, or with the error of the
    process that failed first.
    """
    kind = _kind(wanted, stage)
    command = ["-m", "coevolve", "job", str(job)]
    if wanted.nodes > 1 and _MAIN_ADDRESS not in os.environ:
        sizes = ["--processes", str(wanted.processes), "--nodes", str(wanted.nodes), "--launch", str(wanted.file)]
        gpus = ["--gpus", str(0 if on_cpus() else wanted.per_node)]
        _over_nodes(wanted, [*command, *sizes, *gpus, "--threads", str(threads)])
        return
    _require_devices(wanted, kind)
    os.environ[_FILE] = files.sha256(wanted.file)
    os.environ.setdefault(_LAUNCH_ID, uuid.uuid4().hex)
    # Each process runs the stage itself, on its share of the threads.
    share = ["--threads", str(max(1, threads // wanted.per_node))]
    _on_this_node(wanted, ["--config_file", str(wanted.file), *_rendezvous(wanted), *command, *share])


def _kind(wanted: Launch, stage: str) -> str:
    """The launch file's distributed type, such as MULTI_GPU, DEEPSPEED or FSDP; raises `UserError` if it cannot run."""
    from accelerate.commands.config.config_args import load_config_from_file  # type: ignore[import-untyped]

    from coevolve.pipeline.registry import STAGES

    if stage not in STAGES or not STAGES[stage].launchable:
        launchable = ", ".join(name for name, declared in STAGES.items() if declared.launchable)
        raise UserError(f"--processes: `{stage}` runs in one process; only {launchable} run in several.")
    if not wanted.file.is_file():
        raise UserError(f"--launch {wanted.file}: no such file; name one of configs/accelerate/*.yaml.")
    if wanted.processes % wanted.nodes:
        raise UserError(f"--processes {wanted.processes} is not a multiple of --nodes {wanted.nodes}; change one.")
    try:
        kind = str(load_config_from_file(str(wanted.file)).distributed_type.value)
    except (ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise UserError(f"{wanted.file}: not a config of accelerate ({error}); correct it.") from None
    if kind == "DEEPSPEED" and importlib.util.find_spec("deepspeed") is None:
        raise UserError(f"{wanted.file}: DeepSpeed is not installed; install `coevolve[deepspeed]` or use fsdp.yaml.")
    return kind


def _require_devices(wanted: Launch, kind: str) -> None:
    """Raise `UserError` unless this node has a device for each of its processes. ACCELERATEUSE_CPU=1 selects CPUs."""
    import torch

    if on_cpus():
        if kind == "FSDP":
            raise UserError(f"{wanted.file}: FSDP would be DDP without a GPU; use ddp.yaml or zero3.yaml.")
        if kind == "DEEPSPEED":  # accelerate's CPU mode would switch DeepSpeed off; hidden GPUs have the same effect
            del os.environ[USE_CPU]
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
            # Nodes that share a home can have different CPUs, so each has compiled operators of its own.
            operators = Path.home() / ".cache/torch_extensions" / socket.gethostname()
            delete_abandoned_locks(Path(os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(operators))))
        return
    devices = torch.cuda.device_count()
    if devices < wanted.per_node:
        node, required = os.environ.get("SLURMD_NODENAME", socket.gethostname()), wanted.per_node
        raise UserError(
            f"--processes {wanted.processes}: {required} devices required on {node}, {devices} visible; request"
            f" {required} from the scheduler, or set {USE_CPU}=1 to run on CPUs."
        )


def delete_abandoned_locks(folder: Path) -> None:
    """Delete the lock files of compilations in `folder` that no process of this node holds open.

    A killed compilation leaves its lock file, and torch waits without limit until that file is gone.
    """
    held = set[str]()
    for opened in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # another user's process, or one that has ended
            held.add(str(opened.readlink()))
    for lock in folder.glob("*/lock"):
        if str(lock.resolve()) not in held:
            lock.unlink(missing_ok=True)


def _rendezvous(wanted: Launch) -> list[str]:
    """Launcher options for the rendezvous: a free port of this machine, or the main node's address and port."""
    processes = ["--num_processes", str(wanted.processes), "--num_machines", str(wanted.nodes)]
    if wanted.nodes == 1:
        return [*processes, "--main_process_port", "0"]
    host, _, port = os.environ[_MAIN_ADDRESS].rpartition(":")
    rank = os.environ[_NODES].split(",").index(os.environ["SLURMD_NODENAME"])
    return [*processes, "--machine_rank", str(rank), "--main_process_ip", host, "--main_process_port", port]


def _on_this_node(wanted: Launch, options: list[str]) -> None:
    from accelerate.commands.launch import launch_command, launch_command_parser  # type: ignore[import-untyped]
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        launch_command(launch_command_parser().parse_args(options))
    except ChildFailedError as error:
        raise UserError(_sentence(error.failures, wanted)) from None
    except SignalException as error:
        raise UserError(f"ended by {error.sigval.name}; {_RESUMES}.") from None


def _sentence(failures: Mapping[int, Any], wanted: Launch) -> str:
    """The cause: a `UserError` if there is one, else a killed process, else the earliest exception.

    The other processes fail within the same second because of the first, some of them by a signal.
    """
    rank, failure = min(failures.items(), key=lambda item: (_order(item[1]), item[1].timestamp))
    text, process = _text(failure), f"process {rank} of {wanted.processes}"
    if text.startswith("UserError: "):
        return text.removeprefix("UserError: ")
    if failure.exitcode < 0:
        return f"{process} was killed by {failure.signal_name()} (out of memory?), which ended the others; {_RESUMES}."
    return f"{process} failed: {text}; its traceback is above."


def _order(failure: Any) -> int:
    """Rank of a failure as the probable cause; 0 is the most probable."""
    if _text(failure).startswith("UserError: "):
        return 0
    signals = {"SIGKILL": 1, "SIGTERM": 3}  # no process sends itself the first; the launcher sends the second
    return signals.get(failure.signal_name(), 2) if failure.exitcode < 0 else 3


def _text(failure: Any) -> str:
    return str(failure.message if isinstance(failure.message, str) else failure.message["message"])


def _over_nodes(wanted: Launch, arguments: list[str]) -> None:
    """Start this command once on each node of the Slurm job; the node of this process is the main node."""
    job, main = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURMD_NODENAME")
    if job is None or main is None or shutil.which("srun") is None:
        raise UserError(f"--nodes {wanted.nodes}: no Slurm job; start it with sbatch or srun on that many nodes.")
    # In Slurm's order; the environment variables of a step have the step's nodes only.
    listed = _slurm("squeue", "--job", job, "--noheader", "--format", "%N")
    names = _slurm("scontrol", "show", "hostnames", listed).split()
    if len(names) < wanted.nodes:
        raise UserError(f"--nodes {wanted.nodes}: job {job} has {len(names)} ({', '.join(names)}); request more.")
    chosen = [main, *(name for name in names if name != main)][: wanted.nodes]
    with socket.socket() as free:
        free.bind(("", 0))
        address = f"{socket.gethostname()}:{free.getsockname()[1]}"
    variables = {_NODES: ",".join(chosen), _MAIN_ADDRESS: address, _LAUNCH_ID: uuid.uuid4().hex}
    command = [*_srun(wanted, job, chosen), sys.executable, *arguments]
    if subprocess.run(command, env={**_job_environment(), **variables}, check=False).returncode:
        sys.exit(2)  # the failed node has printed the reason


def _srun(wanted: Launch, job: str, nodes: list[str]) -> list[str]:
    """The srun command for one task on each node, which shares the nodes with the step of this process."""
    size = [f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1", f"--nodelist={','.join(nodes)}"]
    # Without the option Slurm gives one node of a step all of its devices and the other a single one.
    devices = [] if on_cpus() else [f"--gpus-per-node={wanted.per_node}"]
    return ["srun", f"--jobid={job}", "--overlap", "--kill-on-bad-exit=1", *size, *devices]


def _job_environment() -> dict[str, str]:
    """The environment without Slurm's variables of this step: the new step has other tasks, CPUs and devices."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SRUN_", "SBATCH_"))}
    return kept | {name: os.environ[name] for name in ("SLURM_JOB_ID", "SLURM_CONF") if name in os.environ}


def _slurm(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{command[0]}: {done.stderr.strip()}; check that the job belongs to this Slurm.")
    return done.stdout.strip()
