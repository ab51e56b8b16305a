"""`coevolve stage`: runs one stage, as Snakemake does."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from coevolve.arguments import natural, positive
from coevolve.cli.command import (
    OFFLINE,
    OPTIONAL_MACHINE,
    SUITE,
    Argument,
    Command,
    Commands,
    argument,
    plan_with_machine,
    suite_of,
)
from coevolve.errors import UserError

ARGUMENTS = (
    *SUITE,
    OPTIONAL_MACHINE,
    argument(
        "--out", type=Path, required=True, help="folder of the result; replaces a result of the same stage as a whole"
    ),
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
        "--fingerprint", default="", help="expected fingerprint; the job fails if its settings or code have changed"
    ),
    argument(
        "--reuse",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="reuse another suite's result of an equal job, if there is one",
    ),
    argument("--inputs", default="", metavar="DIGEST", help="expected digest of the planned input files' names"),
    argument(
        "--root", default="results", metavar="DIR", help="folder of the suite's results, where planned inputs lie"
    ),
    argument("files", nargs="*", metavar="NAME=FILE", help="input files by name, instead of those of the suite's plan"),
)


def stages() -> Commands:
    """A command for each stage."""
    from coevolve.pipeline.registry import STAGES

    def on(wildcards: Sequence[str]) -> Argument:
        text = f"the job's wildcards; this stage has: {', '.join(wildcards) or 'none'}"
        return argument("--on", action="append", default=[], metavar="NAME=VALUE", help=text)

    return {
        name: Command(stage.help, partial(_stage, name), (*ARGUMENTS, on(stage.known_wildcards)))
        for name, stage in STAGES.items()
    }


def _stage(name: str, options: argparse.Namespace) -> int:
    from coevolve.pipeline.registry import STAGES

    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    if not STAGES[name].network:
        os.environ |= OFFLINE
    from coevolve.pipeline import devices

    with devices.taken(options.gpus):
        _run_stage(name, options)
    return 0


def _run_stage(name: str, options: argparse.Namespace) -> None:
    from coevolve.pipeline import run_job

    on = dict(map(_pair, options.on))
    plan = replace(plan_with_machine(suite_of(options), options)[0], root=options.root)
    inputs = run_stage.inputs(plan, name, on, list(map(_pair, options.files)), options.inputs)
    if options.processes == 1:
        out, threads, planned = options.out, options.threads, options.fingerprint
        run_stage.execute(plan, name, on, inputs, out, threads, planned, reuse=options.reuse)
    elif not (
        options.reuse and run_stage.reuse_before_launch(plan, name, on, inputs, options.out, options.fingerprint)
    ):
        from coevolve.pipeline import launch

        wanted = launch.Launch(options.launch, options.processes, options.nodes)
        launch.launch(wanted, name, options.arguments, options.threads)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"argument `{text}`: write it as NAME=VALUE.")
    return name, value
