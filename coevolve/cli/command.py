"""The types of commands, and what several commands share."""

from __future__ import annotations

import argparse
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from coevolve import escaping
from coevolve.errors import UserError, suggestion

if TYPE_CHECKING:
    from coevolve.config.suite import Suite
    from coevolve.methods.recipes import Ablation
    from coevolve.pipeline.plan import Plan

#: Jobs read files that were fetched before: libraries stay off the network. Libraries read this when they are imported.
OFFLINE = dict.fromkeys(
    ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK"), "1"
)
CLAIMS = Path("configs/claims.yaml")
#: Adds something to the arguments of a command.
Argument = Callable[[argparse.ArgumentParser], Any]
#: Runs a command; returns the exit status.
Run = Callable[[argparse.Namespace], int]


def argument(*names: str, **settings: Any) -> Argument:
    """An argument of a command, as `ArgumentParser.add_argument` takes it."""
    return operator.methodcaller("add_argument", *names, **settings)


SET = argument("--set", action="append", default=[], metavar="KEY.SUBKEY=VALUE", help="override a config key")
SUITE_NAME = "a name, such as smoke for configs/suites/smoke.yaml, or a path"
SUITE = (argument("--suite", required=True, help=SUITE_NAME), SET)
OPTIONAL_SUITE = (argument("--suite", help=SUITE_NAME), SET)
JSON = argument("--json", action="store_true", help="print JSON, as docs/read/file_formats.md describes it")
OPTIONAL_MACHINE = argument("--machine", help="a name, such as h100 for configs/machines/h100.yaml, or a path")


@dataclass(frozen=True)
class Command:
    """A command: its help text, the function that runs it, and its arguments."""

    help: str
    run: Run
    arguments: tuple[Argument, ...] = ()

    def parser(self, prog: str) -> Parser:
        """The parser of the command's arguments."""
        parser = Parser(prog=prog, description=self.help)
        for add in self.arguments:
            add(parser)
        return parser


def command(*arguments: Argument) -> Callable[[Run], Command]:
    """Makes a command of a function, whose docstring is the help text."""
    return lambda run: Command(str(run.__doc__), run, arguments)


@dataclass(frozen=True)
class Group:
    """Commands under one name; `commands` imports modules only when the group is used. The help lists `first` first."""

    help: str
    commands: Callable[[], Commands]
    first: tuple[str, ...] = ()


Commands = Mapping[str, Command | Group]


class Parser(argparse.ArgumentParser):
    """Arguments of one command."""

    def error(self, message: str) -> NoReturn:
        """Raises `UserError` where argparse would print its usage."""
        raise UserError(f"{message}; see `{self.prog} --help`.")


def show(text: object = "", *, end: str = "\n", file: TextIO | None = None) -> None:
    """Print text without its control characters: a model may have written it."""
    print(escaping.terminal(str(text)), end=end, file=file, flush=True)


def suite_of(options: argparse.Namespace) -> Suite:
    """The suite that the options name, with their overrides."""
    from coevolve.config.loading import load_suite

    return load_suite(options.suite, options.set)


def run_plan(options: argparse.Namespace) -> Plan:
    """The plan of a suite on the named machine, or on that of its last run."""
    from coevolve.pipeline.plan import Plan
    from coevolve.watch.run_record import RunRecord

    suite = suite_of(options)
    record = RunRecord.read(Plan(suite).home)
    return Plan.on(suite, options.machine or (record.machine if record else None))


def ablation_of(suite: Suite, name: str) -> Ablation:
    """A suite's ablation by its name; raises `UserError` for an unknown one."""
    if name not in suite.ablations:
        hint = suggestion(name, suite.ablations) or "."
        raise UserError(f"--ablation: the suite has no ablation `{name}`{hint}")
    return suite.ablations[name]
