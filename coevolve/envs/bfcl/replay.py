"""Replays all gold calls beside upstream's executor: `coevolve replay bfcl`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

HELP = "Replay all gold calls and compare each output with upstream's executor."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `run`."""
    parser.add_argument("--limit", type=int, metavar="N", help="replay the first N scenarios of each category only")


def run(options: argparse.Namespace, write: Callable[[str], None]) -> int:
    """Writes the counts of each category and the first difference; returns 1 if something differs, else 0."""
    from coevolve.envs.bfcl import conformance, scenarios

    status = 0
    for category in scenarios.CATEGORIES:
        report = conformance.replay_gold(category, options.limit)
        write(f"{category}: {report.episodes} episodes, {report.calls} calls, {len(report.differences)} differences")
        if report.differences:
            write(f"first difference: {report.differences[0]}")
        status |= bool(report.differences) or not report.episodes
    return status
