"""The command line: a table of commands, each with its arguments and the function that runs it."""

import argparse
import logging
import os
import sys

from coevolve import __version__, completion, escaping
from coevolve.cli import cluster, exports, others, planning, results, stage
from coevolve.cli.command import OFFLINE, Command, Commands, Group, argument, show
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
            lines += [f"{title}:", *(f"  {name:{width}}  {commands[name].help}" for name in names), ""] if names else []
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


COMMANDS: Commands = {
    **planning.COMMANDS,
    **cluster.COMMANDS,
    **results.COMMANDS,
    **others.COMMANDS,
    "stage": Group("Run one stage on given files, as Snakemake does.", stage.stages),
    "job": stage.run_planned,
    "export": Group("Export results to one folder, or in the formats of other tools.", lambda: exports.COMMANDS),
    "replay": Group("Replay recorded episodes and compare every observation.", others.replays),
    "mirror": Group("List or verify the external files and models that a suite needs.", lambda: planning.MIRROR),
    "completion": Command(
        "Print a shell's completion script.",
        lambda options: others.print_completion(COEVOLVE, options.shell),
        (argument("shell", choices=completion.SHELLS),),
    ),
}
#: The commands that the help lists first.
FIRST = ("plan", "status", "config", "view", "why", "verify", "stage")
COEVOLVE: Group = Group(
    "Plan a suite and examine its results. Run it with Snakemake: `snakemake --profile smoke --config suite=smoke`.",
    lambda: COMMANDS,
    FIRST,
)
