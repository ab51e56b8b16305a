"""Commands that environments bring, and the shell's completion."""

import argparse
import re
from functools import partial
from pathlib import Path

from coevolve import completion
from coevolve.cli.command import Command, Commands, Group, argument, command, show

IPR = Path("data/mirror/ipr")


def replays() -> Commands:
    """A command for each environment that replays recorded episodes."""
    from coevolve.envs import registry

    return {
        kind: Command(replay.HELP, partial(replay.run, write=show), (replay.add_arguments,))
        for kind, replay in registry.replays().items()
    }


def print_completion(root: Group, shell: str) -> int:
    """Print the completion script of the commands below `root`."""
    names: dict[str, list[str]] = {}
    flags: dict[str, list[str]] = {}

    def add(group: Group, words: str) -> None:
        commands = group.commands()
        names[words] = [*commands]
        for name, each in commands.items():
            below = f"{words} {name}".strip()
            if isinstance(each, Group):
                add(each, below)
            else:
                usage = each.parser(below).format_usage()
                flags[below] = sorted(set(re.findall(r"--[a-z][a-z-]*", usage)))

    add(root, "")
    show(completion.script(shell, names, flags), end="")
    return 0


@command(
    argument("archives", type=Path, nargs="+", metavar="ARCHIVE", help="the zip files of IPR's setup.sh"),
    argument("--out", type=Path, default=IPR, help="default: %(default)s"),
)
def import_ipr(options: argparse.Namespace) -> int:
    """Unpack IPR's data archives (InterCodeSQL) and print their paths and hashes."""
    from coevolve.envs.intercode_sql import ipr_archives

    for name, sha256 in ipr_archives.unpack(options.archives, options.out).items():
        show(f"{options.out / name}  sha256 {sha256}")
    return 0


COMMANDS = {"import": import_ipr}
