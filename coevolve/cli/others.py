"""Commands that environments bring, and the shell's completion."""

from __future__ import annotations

import argparse
import re
from functools import partial
from pathlib import Path

from coevolve import completion
from coevolve.cli.command import Command, Group, Parser, show

IPR = Path("data/mirror/ipr")


def replays() -> dict[str, dict[str, Command]]:
    """A command for each environment that replays recorded episodes."""
    from coevolve.config.kinds import known_kinds
    from coevolve.envs.registry import Replay, optional

    replays: dict[str, Replay] = {kind: replay for kind in known_kinds() if (replay := optional(kind, "replay"))}
    commands = {
        kind: Command(replay.HELP, replay.add_arguments, partial(replay.run, write=show))
        for kind, replay in replays.items()
    }
    return {"environments": commands}


def completion_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `coevolve completion`."""
    parser.add_argument("shell", choices=completion.SHELLS)


def print_completion(root: Group, options: argparse.Namespace) -> int:
    """Print the completion script of the commands below `root`."""
    names: dict[str, list[str]] = {}
    flags: dict[str, list[str]] = {}

    def add(group: Group, words: str) -> None:
        commands = {name: command for section in group.sections().values() for name, command in section.items()}
        names[words] = [*commands]
        for name, command in commands.items():
            below = f"{words} {name}".strip()
            if isinstance(command, Group):
                add(command, below)
            else:
                parser = Parser(prog=below)
                command.add_arguments(parser)
                flags[below] = sorted(set(re.findall(r"--[a-z][a-z-]*", parser.format_usage())))

    add(root, "")
    show(completion.script(options.shell, names, flags), end="")
    return 0


def import_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `coevolve import`."""
    parser.add_argument("archives", type=Path, nargs="+", metavar="ARCHIVE", help="the zip files of IPR's setup.sh")
    parser.add_argument("--out", type=Path, default=IPR, help="default: %(default)s")


def import_ipr(options: argparse.Namespace) -> int:
    """Unpack IPR's archives, and print the files with their hashes."""
    from coevolve.envs.intercode_sql import ipr_archives

    for name, sha256 in ipr_archives.unpack(options.archives, options.out).items():
        show(f"{options.out / name}  sha256 {sha256}")
    return 0


COMMANDS = {
    "import": Command(
        "Unpack IPR's data archives (InterCodeSQL) and print their paths and hashes.", import_arguments, import_ipr
    ),
}
