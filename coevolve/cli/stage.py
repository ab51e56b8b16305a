"""`coevolve stage` plans one job and runs it; `coevolve job` runs a job that a run of Snakemake planned."""

import argparse
import os
from functools import partial
from pathlib import Path

from coevolve.arguments import natural, positive
from coevolve.cli.command import (
    OFFLINE,
    OPTIONAL_MACHINE,
    SUITE,
    Command,
    Commands,
    Group,
    argument,
    command,
    suite_of,
)
from coevolve.errors import UserError

RESOURCES = (
    argument("--threads", type=positive, default=1, help="CPU threads on each node"),
    argument("--processes", type=positive, default=1, help="number of processes on all nodes together"),
    argument("--nodes", type=positive, default=1, help="number of nodes"),
    argument(
        "--gpus",
        type=natural,
        default=0,
        help="of the visible GPUs use so many that no other job uses (default: all)",
    ),
    argument(
        "--launch", type=Path, default=Path("none"), metavar="FILE", help="accelerate's config for several processes"
    ),
    argument(
        "--reuse",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="reuse another suite's result of an equal job, if there is one",
    ),
)
ARGUMENTS = (
    *SUITE,
    OPTIONAL_MACHINE,
    argument(
        "--out", type=Path, required=True, help="folder of the result; replaces a result of the same stage as a whole"
    ),
    *RESOURCES,
    argument(
        "--root", default="results", metavar="DIR", help="folder of the suite's results, where planned inputs lie"
    ),
    argument("files", nargs="*", metavar="NAME=FILE", help="input files by name, instead of those of the suite's plan"),
)


def stages() -> Commands:
    """A command for each stage."""
    from coevolve.pipeline.registry import STAGES

    on = argument(
        "--on", action="append", default=[], metavar="NAME=VALUE", help="what the job is about, such as env=webshop"
    )
    return {name: Command(stage.help, partial(_stage, name), (*ARGUMENTS, on)) for name, stage in STAGES.items()}


@command(argument("file", type=Path, metavar="FILE", help="the job, which the plan of a run wrote"), *RESOURCES)
def run_planned(options: argparse.Namespace) -> int:
    """Run a planned job from its file, as Snakemake does."""
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    return _run(options.file, options)


def _stage(name: str, options: argparse.Namespace) -> int:
    """Write the file of a job, and run it."""
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # libraries read it when they are imported
    from coevolve.pipeline import run_job
    from coevolve.pipeline.job_file import JobFile
    from coevolve.pipeline.plan import Plan
    from coevolve.pipeline.stage import work_folder

    plan = Plan.on(suite_of(options), options.machine, options.root)
    job = plan.require(name, dict(map(_pair, options.on)))
    given: dict[str, list[str]] = {}
    for input_name, path in map(_pair, options.files):
        given.setdefault(input_name, []).append(path)
    plan.require_inputs(job, given)
    planned, file = JobFile.of(plan, job, {**given}, options.out), work_folder(options.out) / "job.json"
    run_job.require_replaceable(planned)
    planned.write(file)
    return _run(file, options)


def _run(file: Path, options: argparse.Namespace) -> int:
    from coevolve.pipeline.job_file import JobFile

    job = JobFile.read(file)
    if not job.network:
        os.environ |= OFFLINE
    from coevolve.pipeline import devices, run_job

    with devices.taken(options.gpus):
        if options.processes == 1:
            run_job.execute(job, options.threads, reuse=options.reuse)
        elif not (options.reuse and run_job.reuse_before_launch(job)):
            from coevolve.pipeline import launch

            wanted = launch.Launch(options.launch, options.processes, options.nodes)
            launch.launch(wanted, job.stage, file, options.threads)
    return 0


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"argument `{text}`: write it as NAME=VALUE.")
    return name, value


COMMANDS: Commands = {"stage": Group("Run one stage on given files, as Snakemake does.", stages), "job": run_planned}
