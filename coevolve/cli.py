"""The command line: one command a stage, and `plan`, `replay` and `doctor` beside them."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections import Counter
from pathlib import Path

from coevolve import config, provenance
from coevolve.errors import UserError
from coevolve.plan import STAGES, Plan

GOLD = Path("data/sciworld/gold.jsonl")


def main(arguments: list[str] | None = None) -> None:
    """Run one command; bad input ends in one sentence on stderr and exit status 2."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    try:
        status = options.command(options)
    except UserError as error:
        print(f"coevolve: {error}", file=sys.stderr)
        status = 2
    sys.exit(status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="coevolve", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in STAGES:
        _add_stage(commands.add_parser(name, help=f"run the stage `{name}`"), name)
    plan = commands.add_parser("plan", help="print what a full run executes")
    _add_config(plan)
    plan.set_defaults(command=_plan)
    replay = commands.add_parser("replay", help="replay recorded trajectories and compare every observation")
    replay.add_argument("env", choices=["sciworld"])
    replay.add_argument("file", type=Path, nargs="?", default=GOLD, help="recorded episodes (default: %(default)s)")
    replay.add_argument("--limit", type=int, help="replay the first N trajectories only")
    replay.set_defaults(command=_replay)
    doctor = commands.add_parser("doctor", help="check this machine: versions, Java, a ScienceWorld episode")
    doctor.set_defaults(command=_doctor)
    return parser


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, required=True, help="suite, one of configs/*.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY.SUBKEY=VALUE", help="override a config key")


def _add_stage(parser: argparse.ArgumentParser, name: str) -> None:
    _add_config(parser)
    parser.add_argument("--out", type=Path, required=True, help="directory of the results, replaced whole")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--on", action="append", default=[], metavar="NAME=VALUE", help="model, env, branch, agent")
    parser.add_argument("inputs", nargs="*", metavar="NAME=FILE", help="input files by name")
    parser.set_defaults(command=_stage, stage=name)


def _stage(options: argparse.Namespace) -> int:
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    from coevolve.stages.execute import execute

    inputs: dict[str, list[Path]] = {}
    for name, path in map(_pair, options.inputs):
        inputs.setdefault(name, []).append(Path(path))
    suite = config.load(options.config, options.set)
    execute(suite, options.stage, dict(map(_pair, options.on)), inputs, options.out, options.threads)
    return 0


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"argument `{text}`: write it as NAME=VALUE.")
    return name, value


def _plan(options: argparse.Namespace) -> int:
    plan = Plan(config.load(options.config, options.set))
    jobs = list(plan.jobs())
    for stage, count in Counter(stage for stage, _ in jobs).items():
        print(f"{stage:10} {count:4}")
    print(f"{'all':10} {len(jobs):4}")
    return 0


def _replay(options: argparse.Namespace) -> int:
    from coevolve.envs.replay import replay_recorded_sciworld

    summary = replay_recorded_sciworld(options.file, limit=options.limit)
    if summary.first:
        first = summary.first
        print(f"first difference: {first.task_id}, turn {first.turn}, {first.what}")
        print(f"recorded: {first.expected}\nreplayed: {first.found}")
    print(f"{summary.episodes} episodes, {summary.turns} turns compared; {summary.different} episodes differ")
    return 1 if summary.different else 0


def _doctor(_: argparse.Namespace) -> int:
    for name, version in provenance.versions().items():
        print(f"{name:14} {version}")
    from coevolve.envs.replay import replay_recorded_sciworld

    summary = replay_recorded_sciworld(GOLD, limit=3)
    print(f"ScienceWorld   {summary.episodes} recorded episodes replayed, {summary.different} differ")
    return 1 if summary.different else 0
