"""Replays a run that InterCode recorded on a database server: `coevolve replay intercode_sql`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from coevolve.arguments import positive

HELP = "Replay a run that InterCode recorded in 2023."
DUMP = Path("data/mirror/spider/spider_dev.sql")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `run`."""
    parser.add_argument("--recorded", type=Path, required=True, metavar="FILE", help="the recorded run")
    parser.add_argument(
        "--items", type=Path, metavar="FILE", help="ic_spider_dev.json (default: near the recorded run)"
    )
    parser.add_argument("--dump", type=Path, default=DUMP, metavar="FILE", help="the databases (default: %(default)s)")
    parser.add_argument("--server", metavar="ADDRESS", help="user@host:port of a server that holds the databases")
    parser.add_argument("--limit", type=positive, metavar="N", help="replay the first N episodes only")


def run(options: argparse.Namespace, write: Callable[[str], None]) -> int:
    """Writes the first difference of each class and the shares; returns 0: differences are expected and counted."""
    from coevolve.envs.intercode_sql import recorded_runs
    from coevolve.envs.intercode_sql.server_program import DEFAULT_CONFIG

    server = DEFAULT_CONFIG.model_copy(update={"address": options.server})
    report = recorded_runs.replay(options.recorded, server, options.dump, options.items, options.limit)
    for kind in report.by_class:
        for difference in report.examples(kind, 1):
            write(f"{kind}, item {difference.item}, turn {difference.turn}: {difference.pair.statement}")
            write(f"recorded: {difference.pair.recorded}\nanswered: {difference.pair.current}")
    write(report.summary_line())
    return 0
