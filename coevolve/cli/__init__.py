"""The command line: the module of each command, which has its arguments and the function that runs it."""

import argparse
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module

from coevolve import __version__, escaping
from coevolve.cli.command import OFFLINE, Command, Group, show
from coevolve.errors import UserError, suggestion

__all__ = ["OFFLINE", "main"]


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit; Ctrl-C gives the exit status 130.

    Bad input, or an environment that fails outside of an episode, gives one sentence on stderr and exit status 2.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(escaping.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # OpenAI's client: else a line for each request
    try:
        status = _run("coevolve", COEVOLVE, sys.argv[1:] if arguments is None else arguments)
    except UserError as error:
        show(f"coevolve: {error}", file=sys.stderr)
        status = 2
    except OSError as error:
        status = _after_os_error(error)
    except Exception as error:
        from coevolve.envs.base import EnvError

        if not isinstance(error, EnvError):
            raise
        show(f"coevolve: {' '.join(str(error).split())}; run the same command again.", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        status = 130  # a shell's status after SIGINT; `coevolve status` calls the job stopped
    sys.exit(status)


def _after_os_error(error: OSError) -> int:
    """The exit status after an `OSError`; raises the error unless a user can correct it."""
    from coevolve.storage import files

    if isinstance(error, BrokenPipeError):  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if not files.is_disk_problem(error):
        raise error
    show(f"coevolve: {files.disk_problem(error)}", file=sys.stderr)
    return 2


def _run(prog: str, group: Group, arguments: list[str]) -> int:
    """Run the command of the group that the first argument names; returns the exit status."""
    commands = group.commands()
    name, *rest = arguments or ["--help"]
    if name == "--version":
        show(f"coevolve {__version__}")
        return 0
    if name in ("-h", "--help"):
        width = max(map(len, commands))
        lines = [f"usage: {prog} NAME ...", "", group.help, ""]
        first = group.first or [*commands]
        for title, names in {"commands": first, "also": [name for name in commands if name not in first]}.items():
            lines += [f"{title}:", *(f"  {name:{width}}  {_help(group, name)}" for name in names), ""] if names else []
        show("\n".join([*lines, f"`{prog} NAME --help` lists its arguments."]))
        return 0
    if name not in commands:
        hint = suggestion(name, commands) or f"; see `{prog} --help`."
        raise UserError(f"`{prog} {name}` does not exist{hint}")
    command = commands[name]
    if isinstance(command, Group):
        return _run(f"{prog} {name}", command, rest)
    parser = command.parser(f"{prog} {name}")
    return command.run(parser.parse_args(rest, argparse.Namespace(arguments=rest)))


#: The module of this package that has each command, and its line of the help.
COMMANDS = {
    "plan": ("planning", "Estimate the jobs, time, GPU-hours and disk of a suite."),
    "power": ("planning", "Print what a run can decide, and what it would take to decide the rest."),
    "status": ("planning", "Print which jobs of a suite are done, running, failed or changed, and the time left."),
    "config": ("planning", "Print a suite's merged configuration, each key with its file and line."),
    "targets": ("planning", "List the named Snakemake targets of a suite."),
    "doctor": ("planning", "Check in seconds whether this machine can run a suite."),
    "mirror": ("planning", "List or verify the external files and models that a suite needs."),
    "cluster": ("cluster", "Describe this Slurm cluster in site.yaml, and fetch what a suite needs."),
    "view": ("results", "Write HTML pages of all episodes, pairs and products."),
    "why": ("results", "Trace a printed number back to episodes, policies, pairs and code."),
    "verify": ("results", "Judge the paper's claims."),
    "regime": ("results", "Check whether finished results can decide between methods."),
    "evaluate-model": ("results", "Evaluate a checkpoint or an endpoint on one environment."),
    "compare": ("results", "Compare result files, and check whether they are comparable."),
    "reverify": ("results", "Execute recorded actions again, and make records and pairs again."),
    "export": ("exports", "Export results to one folder, or in the formats of other tools."),
    "replay": ("others", "Replay recorded episodes and compare every observation."),
    "import": ("others", "Unpack IPR's data archives (InterCodeSQL)."),
    "stage": ("stage", "Run one stage on given files."),
    "job": ("stage", "Run a planned job from its file, as Snakemake does."),
}
#: The commands that the help lists first.
FIRST = ("plan", "status", "config", "view", "why", "verify", "stage")


class _Modules(Mapping[str, Command | Group]):
    """The commands by name; a module is imported when one of its commands is used."""

    def __getitem__(self, name: str) -> Command | Group:
        commands: Mapping[str, Command | Group] = import_module(f"{__name__}.{COMMANDS[name][0]}").COMMANDS
        return commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


COEVOLVE = Group(
    "Plan a suite and examine its results. Run it with Snakemake: `snakemake --profile smoke --config suite=smoke`.",
    _Modules,
    FIRST,
)


def _help(group: Group, name: str) -> str:
    """The line of the help about a command of a group."""
    return COMMANDS[name][1] if group is COEVOLVE else group.commands()[name].help
