"""Commands that environments bring."""

import argparse
from functools import partial
from pathlib import Path

from coevolve.cli.command import Command, Commands, Group, argument, command, show

IPR = Path("data/mirror/ipr")


def replays() -> Commands:
    """A command for each environment that replays recorded episodes."""
    from coevolve.config.kinds import known_kinds
    from coevolve.envs.registry import Replay, optional

    replays: dict[str, Replay] = {kind: replay for kind in known_kinds() if (replay := optional(kind, "replay"))}
    return {
        kind: Command(replay.HELP, partial(replay.run, write=show), (replay.add_arguments,))
        for kind, replay in replays.items()
    }


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


COMMANDS = {"replay": Group("Replay recorded episodes and compare every observation.", replays), "import": import_ipr}
