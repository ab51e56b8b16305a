"""Commands before and during a run: plan, status, config, targets, doctor, mirror."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from coevolve.assets.checks import Check
from coevolve.cli.command import (
    CLAIMS,
    JSON,
    OPTIONAL_MACHINE,
    OPTIONAL_SUITE,
    SUITE,
    SUITE_NAME,
    Group,
    ablation_of,
    argument,
    command,
    show,
    suite_of,
)
from coevolve.config.loading import SITE, load_suite, merged
from coevolve.config.suite import Suite, labels
from coevolve.errors import UserError
from coevolve.pipeline import required_files, targets
from coevolve.pipeline.machine import load_machine
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stage import MIRROR
from coevolve.report import claims, costs, looks, power
from coevolve.report.labels import words
from coevolve.shipped import shipped_file
from coevolve.watch import disk, doctor, estimates, node, status
from coevolve.watch.run_record import RunRecord


@command(
    *SUITE,
    OPTIONAL_MACHINE,
    argument("--ablation", metavar="NAME", help="plan this ablation's table instead of the whole suite"),
)
def print_plan(options: argparse.Namespace) -> int:
    """Print the jobs of a suite with their estimated time, GPU-hours and disk, and the memory of its trainings."""
    suite = suite_of(options)
    name = options.machine or _machine_at_hand(suite)
    plan, machine = Plan.on(suite, name), load_machine(name)
    files, part = list[str](), ""
    if options.ablation:
        ablation_of(suite, options.ablation)  # raises for an unknown one
        files, part = plan.ablation(options.ablation).files, f", ablation {options.ablation},"
    estimates.require_whole_batches(plan, machine, plan.jobs(files))
    paces = [list(estimates.jobs(plan, each, files)) for each in (machine, *costs.paced(machine))]
    show(f"Suite {suite.suite}{part} on {machine.label}, estimated, not measured, from {plan.machine}.\n")
    rows, *ends = (costs.lines((stage, cost) for stage, _, cost in jobs) for jobs in paces)
    show(f"{costs.text('stage', rows, ends=ends)}\n")
    rows, *ends = (costs.lines((method, cost) for _, method, cost in jobs) for jobs in paces)
    show(f"{costs.text('method', rows, labels(plan.suite), ends)}\n")
    if memory := estimates.memory(plan, machine, files):
        show("Memory of a GPU in a training with sequences of the whole context, computed:")
        for (model, stage), bytes_ in memory.items():
            show(f"  {suite.models[model].label}, {words(stage)}: {bytes_ / 1e9:.0f} GB")
    needed = disk.disk(plan, machine, files)
    show(f"\n{needed}")
    for text in (disk.missing(plan.home, needed), _kept_counts(suite, options.set)):
        if text:
            show(text)
    show(power.line(claims.load(shipped_file(CLAIMS)), suite, power.load_noise(shipped_file(NOISE))))
    return 0


def _machine_at_hand(suite: Suite) -> str:
    """The machine of the suite's last run, that of `make cluster`, or this computer; raises `UserError` for none."""
    if record := RunRecord.read(Plan(suite).home):
        return record.machine
    if SITE.exists():
        return str(SITE)
    if Path("/dev/nvidiactl").exists():
        raise UserError("this computer has GPUs; name a machine of configs/machines: --machine NAME.")
    return "cpu" if all(model.tiny for model in suite.models.values()) else "cpu_pretrained"


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
    suite = suite_of(options)
    noise = power.load_noise(shipped_file(NOISE))
    hours = None
    if options.machine:
        hours = estimates.hours_of_a_seed(Plan.on(suite, options.machine), load_machine(options.machine))
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
    if options.name and options.suite:
        raise UserError(f"two suites, `{options.name}` and --suite {options.suite}; name one.")
    name = options.name or options.suite
    if not name:
        raise UserError("which suite? Write `coevolve status SUITE`.")
    record = RunRecord.read(Plan(load_suite(name, options.set)).home)
    suite = load_suite(name, options.set or (record.overrides if record else []))
    machine = options.machine or (record.machine if record else None)
    results = status.SuiteState.of(Plan.on(suite, machine), record, name, full=options.full)
    for line in status.text(results, load_machine(machine) if machine else None):
        show(line)
    return int(any(job.state in status.ATTENTION for job in results.states().values()))


@command(*SUITE)
def print_config(options: argparse.Namespace) -> int:
    """Print a suite's merged configuration, each key with the file and line that set it."""
    suite_of(options)  # raises if a key or a value is wrong
    show(merged(options.suite, options.set).commented(), end="")
    return 0


@command(*SUITE)
def print_targets(options: argparse.Namespace) -> int:
    """List the named Snakemake targets of a suite: tables, ablations, environments, methods."""
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
    argument("--node", action="store_true", help="check a compute node, by what jobs do there; run it in a job"),
)
def check_machine(options: argparse.Namespace) -> int:
    """Check in seconds whether this machine can run a suite."""
    setup = doctor.RunSetup.of(options.suite, options.set, options.machine)
    return print_checks(node.checks(setup) if options.node else doctor.run_checks(setup))


@command(*SUITE)
def list_mirror(options: argparse.Namespace) -> int:
    """List the external files and models that a suite needs."""
    for file in required_files.required_files(suite_of(options)):
        show(file)
    return 0


@command(*SUITE, argument("--root", type=Path, default=Path(MIRROR), metavar="DIR", help="default: %(default)s"))
def verify_mirror(options: argparse.Namespace) -> int:
    """Check the sha256 of every file and model that a suite needs."""
    if options.root != Path(MIRROR) and not options.root.is_dir():
        raise UserError(f"--root {options.root}: no such folder; name one with the layout of {MIRROR}.")
    return print_checks(required_files.verify(suite_of(options), options.suite, options.root))


def print_checks(checks: Iterable[Check]) -> int:
    """Print the result of each check at once; returns 1 if one is `missing` or `wrong`, else 0."""
    failed = False
    for check in checks:
        show(check)
        failed |= check.status != "ok"
    return int(failed)


#: The variances that were measured so far.
NOISE = Path("configs/noise.yaml")
COMMANDS = {
    "plan": print_plan,
    "power": print_power,
    "status": print_status,
    "config": print_config,
    "targets": print_targets,
    "doctor": check_machine,
    "mirror": Group(
        "List or verify the external files and models that a suite needs.",
        lambda: {"list": list_mirror, "verify": verify_mirror},
    ),
}
