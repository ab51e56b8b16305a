"""The command line: what it lists, how suites and machines are named, and how near misses end."""

import argparse
import re
import resource
import subprocess
import sys
from dataclasses import replace
from importlib import metadata

import pytest

from coevolve import cli
from coevolve.config.loading import load_suite
from coevolve.pipeline import targets
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.registry import STAGES
from coevolve.watch import disk
from coevolve.watch.disk import Disk


@pytest.fixture(autouse=True)
def here(root, monkeypatch):
    monkeypatch.chdir(root)


def test_the_help_lists_every_command_once_and_no_stage(coevolve):
    status, text, _ = coevolve("--help")
    assert status == 0
    assert coevolve()[1] == text
    for part, commands in zip(text.split("also:"), (cli.FIRST, cli.COMMANDS.keys() - {*cli.FIRST}), strict=True):
        assert {command: part.count(f"\n  {command} ") for command in commands} == dict.fromkeys(commands, 1)
    assert len(cli.FIRST) <= 7
    assert not [stage for stage in STAGES.keys() - cli.COMMANDS.keys() if f"\n  {stage} " in text]


def test_the_version_is_the_packages(coevolve):
    assert coevolve("--version") == (0, f"coevolve {metadata.version('coevolve')}\n", "")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("smok", "suite `smok`: configs/suites/smok.yaml does not exist; did you mean `smoke`?"),
        ("2024_01", "--config suite: Snakemake reads this name as 202401; give its file, suite=FOLDER/NAME.yaml."),
    ],
)
def test_snakemake_ends_in_the_sentence_alone(root, name, sentence):
    command = [sys.executable, "-m", "snakemake", "--profile", "smoke", "--dry-run", "--config", f"suite={name}"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == f"coevolve: {sentence}"
    assert "File " not in done.stderr


@pytest.mark.parametrize(("command", "limit"), [(("-c", "import coevolve"), 0.3), (("-m", "coevolve", "--help"), 0.5)])
def test_an_import_and_the_help_cost_less_than_these_seconds_of_cpu(root, command, limit):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], cwd=root, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < limit


def test_each_stage_has_a_line_in_the_help(coevolve):
    _, text, _ = coevolve("stage", "--help")
    for stage in STAGES:
        (line,) = [line for line in text.splitlines() if line.startswith(f"  {stage} ")]
        assert len(line.split()) > 3


@pytest.mark.parametrize("command", [*cli.COMMANDS])
def test_every_command_has_a_help(coevolve, command):
    status, text, _ = coevolve(command, "--help")
    assert status == 0
    assert text.startswith(f"usage: coevolve {command} ")
    entry = cli.COEVOLVE.commands()[command]
    assert entry.help in " ".join(text.split())
    parser = argparse.ArgumentParser()
    for add in getattr(entry, "arguments", ()):  # a group has commands
        add(parser)
    assert all(re.fullmatch(r"-h|--[a-z]+(-[a-z]+)*", name) for name in parser._option_string_actions)


def test_a_suite_and_a_machine_are_named_by_name_or_path(coevolve):
    named = coevolve("plan", "--suite", "smoke", "--machine", "cpu")
    assert named[0] == 0
    assert named[1].startswith("Suite smoke on one CPU machine")
    assert coevolve("plan", "--suite", "configs/suites/smoke.yaml", "--machine", "configs/machines/cpu.yaml") == named


def test_a_plan_says_that_other_tasks_keep_the_numbers_it_multiplies_by(coevolve):
    tasks = "--set", "envs.webshop.tasks.evaluate=4"
    for command in ("plan", "power"):
        _, text, _ = coevolve(command, "--suite", "smoke", *tasks)
        assert text.count("set those of the new tasks too: `envs.webshop.expected`.") == 1
        _, text, _ = coevolve(command, "--suite", "smoke", *tasks, "--set", "envs.webshop.expected.evaluate=4")
        assert "new tasks" not in text


def test_an_ablation_is_planned_as_snakemake_runs_it(coevolve):
    """The jobs of its table alone; its rows need not be methods of the suite."""
    _, text, _ = coevolve("plan", "--suite", "smoke", "--ablation", "nll")
    plan = Plan(load_suite("smoke"))
    expected = len(plan.jobs(plan.ablation("nll").files))
    assert text.startswith("Suite smoke, ablation nll, on one CPU machine"), "of the computer at hand"
    assert re.findall(r"^\| all +\| +(\d+) ", text, re.MULTILINE) == 2 * [str(expected)]
    assert expected != len(plan.jobs())


def test_targets_are_grouped(coevolve):
    """Each name is in the list, or is that of a method behind an environment's."""
    every = list(targets.targets(Plan(load_suite("smoke"))))
    lines = coevolve("targets", "--suite", "smoke")[1].splitlines()
    heads = [line for line in lines if not line.startswith(" ")]
    groups = (targets.TABLES, targets.ABLATIONS, targets.ENVIRONMENTS, targets.METHODS)
    assert heads[:4] == [f"{each}:" for each in groups]
    listed = {line.split()[0] for line in lines if line.startswith(" ")}
    methods = {name.removeprefix("method_") for name in listed}
    alone = {f"{env}_{name}" for name in methods for env in ("webshop", "sciworld", "intercode_sql")}
    for each in every:
        assert each.name in (alone if each.group == targets.ALONE else listed)
    assert len(lines) < 110


def test_a_plan_says_what_a_full_disk_lacks(tmp_path):
    needed = Disk(written=0, kept=0, downloads=0, peak=2e18)
    assert re.fullmatch(rf"{tmp_path}: .* are free and 2,000,000,000 GB are needed; make room for .* GB\.",
                        disk.missing(str(tmp_path / "results/smoke"), needed))  # fmt: skip
    assert disk.missing(str(tmp_path), replace(needed, peak=1)) == ""


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("plann", "`coevolve plann` does not exist; did you mean `plan`?"),
        ("frobnicate", "`coevolve frobnicate` does not exist; see `coevolve --help`."),
        ("stage sftt", "`coevolve stage sftt` does not exist; did you mean `sft`?"),
        ("doctor --machine cp", "machine `cp`: configs/machines/cp.yaml does not exist; did you mean `cpu`?"),
        (
            "targets --suite qqq",
            "suite `qqq`: configs/suites/qqq.yaml does not exist; give a name or a path to a YAML file.",
        ),
        ("doctor --machine configs/cla.yaml", "configs/cla.yaml: no such file; did you mean `configs/claims.yaml`?"),
        ("targets", "the following arguments are required: --suite; see `coevolve targets --help`."),
        ("targets --suite smoke --foo", "unrecognized arguments: --foo; see `coevolve targets --help`."),
        (
            "plan --suite smoke --set envs.webshp.workers=1",
            "command line: unknown key `envs.webshp`; did you mean `webshop`?",
        ),
        (
            "targets --suite real --set dpo.nl=sum",
            "command line: unknown key `dpo.nl`; did you mean `nll`?",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_exit_status_2(coevolve, command, sentence):
    assert coevolve(*command.split()) == (2, "", f"coevolve: {sentence}\n")
