"""Commands before and during a run: plan, status, config, targets, doctor, mirror."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from coevolve.cli.command import Command, ablation_of, given_machine, machine_argument, show, suite_arguments, suite_of
from coevolve.errors import UserError

if TYPE_CHECKING:
    from coevolve.assets.checks import Check


def plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `coevolve plan`."""
    suite_arguments(parser)
    machine_argument(parser)
    parser.add_argument("--ablation", metavar="NAME", help="plan this ablation's methods instead of the suite's")


def print_plan(options: argparse.Namespace) -> int:
    """Print the estimated costs of a suite's jobs, by stage and by method."""
    from coevolve.config.derived.methods import labels
    from coevolve.config.loading import load_suite, machine_file
    from coevolve.dag.machine import load_machine
    from coevolve.dag.plan import Plan
    from coevolve.follow import estimates
    from coevolve.report import costs

    machine = load_machine(options.machine)
    suite, part = suite_of(options), ""
    if options.ablation:
        methods = json.dumps(ablation_of(suite, options.ablation).methods)
        suite, part = load_suite(options.suite, [*options.set, f"methods={methods}"]), f", ablation {options.ablation},"
    plan = Plan(suite, shards=machine.shards)
    jobs = list(estimates.jobs(plan, machine))
    source = machine_file(options.machine)
    show(f"Suite {suite.suite}{part} on {machine.label}, estimated, not measured, from {source}.\n")
    show(costs.text("stage", costs.lines((stage, cost) for stage, _, cost in jobs)))
    show()
    show(costs.text("method", costs.lines((method, cost) for _, method, cost in jobs), labels(plan.suite)))
    return 0


def status_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `coevolve status`."""
    parser.add_argument(
        "name", nargs="?", metavar="SUITE", help="a name, such as smoke for configs/suites/smoke.yaml, or a path"
    )
    suite_arguments(parser, required=False)
    machine_argument(parser, required=False)


def print_status(options: argparse.Namespace) -> int:
    """Print the state of a suite's jobs; exit status 1 if one failed or was changed."""
    from coevolve.config.loading import load_suite
    from coevolve.dag.machine import load_machine
    from coevolve.dag.plan import Plan
    from coevolve.follow import status
    from coevolve.follow.run_record import RunRecord

    if options.name and options.suite:
        raise UserError(f"two suites, `{options.name}` and --suite {options.suite}; name one.")
    name = options.name or options.suite
    if not name:
        raise UserError("which suite? Write `coevolve status SUITE`.")
    record = RunRecord.read(Plan(load_suite(name, options.set)).home)
    file = given_machine(options, record)
    machine = load_machine(file) if file else None
    suite = load_suite(name, options.set or (record.overrides if record else []))
    plan = Plan(suite, shards=machine.shards, machine=str(file)) if machine else Plan(suite)
    results = status.SuiteState.of(plan, record, name)
    for line in status.text(results, machine):
        show(line)
    return int(any(job.state in status.ATTENTION for job in results.states().values()))


def print_config(options: argparse.Namespace) -> int:
    """Print a suite's merged configuration with its origins."""
    from coevolve.config.loading import merged

    suite_of(options)  # raises if a key or a value is wrong
    show(merged(options.suite, options.set).commented(), end="")
    return 0


def print_targets(options: argparse.Namespace) -> int:
    """Print the named targets of a suite."""
    from coevolve.dag.plan import Plan
    from coevolve.dag.targets import targets

    for target in targets(Plan(suite_of(options))):
        show(f"{target.name:40} {target.text}")
    return 0


def doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `coevolve doctor`."""
    suite_arguments(parser, required=False)
    machine_argument(parser, required=False)
    parser.add_argument(
        "--profile", metavar="NAME", help="use the suite and machine of this Snakemake profile; slurm: check Slurm too"
    )


def check_machine(options: argparse.Namespace) -> int:
    """Print the checks of this machine; exit status 1 if one fails."""
    from coevolve.follow import doctor

    return print_checks(doctor.run_checks(doctor.setup(options.suite, options.set, options.machine, options.profile)))


def mirror_verify_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `coevolve mirror verify`."""
    from coevolve.dag.layout import MIRROR

    suite_arguments(parser)
    parser.add_argument("--root", type=Path, default=Path(MIRROR), metavar="DIR", help="default: %(default)s")


def list_mirror(options: argparse.Namespace) -> int:
    """Print the external files and models of a suite."""
    from coevolve.run import required_files

    for file in required_files.required_files(suite_of(options)):
        show(file)
    return 0


def verify_mirror(options: argparse.Namespace) -> int:
    """Print a check of each external file and model; exit status 1 if one fails."""
    from coevolve.dag.layout import MIRROR
    from coevolve.run import required_files

    if options.root != Path(MIRROR) and not options.root.is_dir():
        raise UserError(f"--root {options.root}: no such folder; name one with the layout of {MIRROR}.")
    return print_checks(required_files.verify(suite_of(options), options.suite, options.root))


def print_checks(checks: Iterable[Check]) -> int:
    """Print the result of each check at once; returns 1 if one is `missing` or `wrong`, else 0."""
    failed = False
    for check in checks:
        show(check)
        failed |= check.status not in ("ok", "stale")
    return int(failed)


MIRROR = {
    "list": Command("List the external files and models that a suite needs.", suite_arguments, list_mirror),
    "verify": Command(
        "Check the sha256 of every file and model that a suite needs.", mirror_verify_arguments, verify_mirror
    ),
}
COMMANDS = {
    "plan": Command(
        "Print the jobs of a suite with their estimated time, GPU-hours and disk.", plan_arguments, print_plan
    ),
    "status": Command(
        "Print which jobs of a suite are done, running, failed or changed, and the time left.",
        status_arguments,
        print_status,
    ),
    "config": Command(
        "Print a suite's merged configuration, each key with the file and line that set it.",
        suite_arguments,
        print_config,
    ),
    "targets": Command("List the named Snakemake targets of a suite.", suite_arguments, print_targets),
    "doctor": Command("Check in seconds whether this machine can run a suite.", doctor_arguments, check_machine),
}
