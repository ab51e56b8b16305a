"""Commands before and during a run: plan, status, config, targets, doctor, mirror."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coevolve.cli.command import (
    CLAIMS,
    JSON,
    OPTIONAL_MACHINE,
    OPTIONAL_SUITE,
    SUITE,
    SUITE_NAME,
    ablation_of,
    argument,
    command,
    plan_with_machine,
    show,
    suite_of,
)
from coevolve.errors import UserError

if TYPE_CHECKING:
    from coevolve.assets.checks import Check
    from coevolve.config.suite import Suite


@command(
    *SUITE,
    OPTIONAL_MACHINE,
    argument("--ablation", metavar="NAME", help="plan this ablation's table instead of the whole suite"),
    argument("--calibrate", action="store_true", help="measure this computer first, in about a minute (without GPUs)"),
)
def print_plan(options: argparse.Namespace) -> int:
    """Print the jobs of a suite with their estimated time, GPU-hours and disk, and the memory of its trainings."""
    from coevolve.config.derived.methods import labels
    from coevolve.config.loading import machine_file
    from coevolve.follow import calibration, disk, estimates
    from coevolve.follow.reusable import Reusable
    from coevolve.pipeline.machine import load_machine
    from coevolve.pipeline.plan import Plan
    from coevolve.report import claims, costs, power
    from coevolve.report.labels import words
    from coevolve.shipped import shipped_file

    suite = suite_of(options)
    name = options.machine or calibration.machine_at_hand(suite)
    machine = load_machine(name)
    if options.calibrate and machine.gpus_per_node:
        raise UserError(f"--calibrate measures this computer without GPUs, and `{name}` has some; leave it out.")
    if options.calibrate:
        calibration.calibrate()
    machine, measured = calibration.calibrated(machine)
    plan = Plan(suite, shards=machine.shards)
    targets, part = list[str](), ""
    if options.ablation:
        ablation_of(suite, options.ablation)  # raises for an unknown one
        targets, part = plan.ablation(options.ablation).files, f", ablation {options.ablation},"
    estimates.require_whole_batches(plan, machine, plan.jobs(targets))
    paces = [list(estimates.jobs(plan, each, targets)) for each in (machine, *costs.paced(machine))]
    source = f"{machine_file(name)}{f', {measured}' if measured else ''}"
    show(f"Suite {suite.suite}{part} on {machine.label}, estimated, not measured, from {source}.\n")
    rows, *ends = (costs.lines((stage, cost) for stage, _, cost in jobs) for jobs in paces)
    show(f"{costs.text('stage', rows, ends=ends)}\n")
    rows, *ends = (costs.lines((method, cost) for _, method, cost in jobs) for jobs in paces)
    show(f"{costs.text('method', rows, labels(plan.suite), ends)}\n")
    if reused := Reusable(plan).sentence(plan.unfinished(targets)):
        show(f"Of what is left, {reused}.")
    if memory := estimates.memory(plan, machine, targets):
        show("Memory of a GPU in a training with sequences of the whole context, computed:")
        for (model, stage), bytes_ in memory.items():
            show(f"  {suite.models[model].label}, {words(stage)}: {bytes_ / 1e9:.0f} GB")
    needed = disk.disk(plan, machine, targets)
    show(f"\n{needed}")
    missing, starts = disk.missing(plan.home, needed), estimates.starts(plan, machine, targets)
    for text in (missing, starts, _kept_counts(suite, options.set)):
        if text:
            show(text)
    show(power.line(claims.load(shipped_file(CLAIMS)), suite, power.load_noise(shipped_file(NOISE))))
    return 0


def _kept_counts(suite: Suite, overrides: Sequence[str]) -> str:
    """Which environments' tasks `overrides` change without the numbers of tasks that estimates are made with."""
    keys = {tuple(re.split("[.=]", override)[:3]) for override in overrides}
    kept = [env for env in suite.envs if ("envs", env, "tasks") in keys and ("envs", env, "expected") not in keys]
    if not kept:
        return ""
    listed = ", ".join(f"`envs.{env}.expected`" for env in kept)
    return f"Estimated with the numbers of tasks before `--set`; set those of the new tasks too: {listed}."


@command(*SUITE, OPTIONAL_MACHINE, JSON)
def print_power(options: argparse.Namespace) -> int:
    """Print what a run can decide with its tasks and seeds, and what it would take to decide the rest."""
    from coevolve.follow import estimates
    from coevolve.pipeline.machine import load_machine
    from coevolve.pipeline.plan import Plan
    from coevolve.report import claims, looks, power
    from coevolve.shipped import shipped_file

    suite = suite_of(options)
    noise = power.load_noise(shipped_file(NOISE))
    hours = None
    if options.machine:
        machine = load_machine(options.machine)
        hours = estimates.hours_of_a_seed(Plan(suite, shards=machine.shards), machine)
    suite = suite.model_copy(update={"report": looks.report_of(suite)})
    seeds = sorted({4, 6, 8, len(suite.seeds)})
    outlook = power.expectations(claims.load(shipped_file(CLAIMS)), suite, noise, seeds, hours)
    if options.json:
        show(outlook.to_json())
        return 0
    source = f"noise of {NOISE}, intervals of {outlook.confidence:.2%}"
    show(f"Suite {suite.suite}, expected, not measured: {source}.\n\n{power.text(outlook)}")
    if kept := _kept_counts(suite, options.set):
        show(kept)
    return 0


@command(
    argument("name", nargs="?", metavar="SUITE", help=SUITE_NAME),
    *OPTIONAL_SUITE,
    OPTIONAL_MACHINE,
    argument("--full", action="store_true", help="read every file again, weights too"),
)
def print_status(options: argparse.Namespace) -> int:
    """Print which jobs of a suite are done, running, failed or changed, and the time left."""
    from coevolve.config.loading import load_suite
    from coevolve.follow import status
    from coevolve.follow.run_record import RunRecord
    from coevolve.pipeline.plan import Plan

    if options.name and options.suite:
        raise UserError(f"two suites, `{options.name}` and --suite {options.suite}; name one.")
    name = options.name or options.suite
    if not name:
        raise UserError("which suite? Write `coevolve status SUITE`.")
    record = RunRecord.read(Plan(load_suite(name, options.set)).home)
    suite = load_suite(name, options.set or (record.overrides if record else []))
    plan, machine = plan_with_machine(suite, options, record)
    results = status.SuiteState.of(plan, record, name, full=options.full)
    for line in status.text(results, machine):
        show(line)
    return int(any(job.state in status.ATTENTION for job in results.states().values()))


@command(*SUITE)
def print_config(options: argparse.Namespace) -> int:
    """Print a suite's merged configuration, each key with the file and line that set it."""
    from coevolve.config.loading import merged

    suite_of(options)  # raises if a key or a value is wrong
    show(merged(options.suite, options.set).commented(), end="")
    return 0


@command(*SUITE)
def print_targets(options: argparse.Namespace) -> int:
    """List the named Snakemake targets of a suite: tables, ablations, environments, methods."""
    from coevolve.pipeline import targets
    from coevolve.pipeline.plan import Plan

    suite = suite_of(options)
    every = list(targets.targets(Plan(suite)))
    for group in (targets.TABLES, targets.ABLATIONS, targets.ENVIRONMENTS, targets.METHODS):
        show(f"{group}:")
        for target in (each for each in every if each.group == group):
            show(f"  {target.name:40} {target.text}")
    show(f"{targets.ALONE}, such as `{next(each.name for each in every if each.group == targets.ALONE)}`:")
    for name, section in suite.envs.items():
        show(f"  {f'{name}_METHOD':40} a method from above, without `method_`, on {section.label}")
    return 0


@command(
    *OPTIONAL_SUITE,
    OPTIONAL_MACHINE,
    argument(
        "--profile", metavar="NAME", help="use the suite and machine of this Snakemake profile; slurm: check Slurm too"
    ),
)
def check_machine(options: argparse.Namespace) -> int:
    """Check in seconds whether this machine can run a suite."""
    from coevolve.follow import doctor

    setup = doctor.RunSetup.of(options.suite, options.set, options.machine, options.profile)
    return print_checks(doctor.run_checks(setup))


@command(*SUITE)
def list_mirror(options: argparse.Namespace) -> int:
    """List the external files and models that a suite needs."""
    from coevolve.pipeline import required_files

    for file in required_files.required_files(suite_of(options)):
        show(file)
    return 0


def _root_argument(parser: argparse.ArgumentParser) -> None:
    from coevolve.pipeline.stage import MIRROR

    parser.add_argument("--root", type=Path, default=Path(MIRROR), metavar="DIR", help="default: %(default)s")


@command(*SUITE, _root_argument)
def verify_mirror(options: argparse.Namespace) -> int:
    """Check the sha256 of every file and model that a suite needs."""
    from coevolve.pipeline import required_files
    from coevolve.pipeline.stage import MIRROR

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


#: The variances that were measured so far.
NOISE = Path("configs/noise.yaml")
#: The commands below `coevolve mirror`.
MIRROR = {"list": list_mirror, "verify": verify_mirror}
COMMANDS = {
    "plan": print_plan,
    "power": print_power,
    "status": print_status,
    "config": print_config,
    "targets": print_targets,
    "doctor": check_machine,
}
