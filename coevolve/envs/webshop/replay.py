"""Replays what upstream's WebShop answered: `coevolve replay webshop`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from coevolve.arguments import positive
from coevolve.errors import UserError

HELP = "Replay upstream's recorded answers, or run a checkout of upstream too."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `run`."""
    parser.add_argument("--catalogue", type=Path, metavar="DIR", help="folder with upstream's product files")
    parser.add_argument("--traces", type=Path, metavar="FILE", help="upstream's recorded answers on this catalogue")
    parser.add_argument("--goals", type=Path, metavar="FILE", help="upstream's human_goals.json, instead of traces")
    parser.add_argument("--tagger", choices=["spacy", "approximate"], default="spacy")
    parser.add_argument("--upstream", type=Path, metavar="PATH", help="a WebShop checkout, instead of traces")
    parser.add_argument("--python", type=Path, default=Path("python3"), help="Python interpreter for the checkout")
    parser.add_argument(
        "--episodes", type=positive, default=20, metavar="N", help="random episodes to run in the checkout"
    )
    parser.add_argument("--synthetic", action="store_true", help="use synthetic goals in the checkout")


def run(options: argparse.Namespace, write: Callable[[str], None]) -> int:
    """Writes counts and the first difference; returns 1 if something differs or nothing was compared, else 0.

    Raises `UserError` for options that name neither traces, nor goals, nor a checkout.
    """
    from coevolve.envs.webshop import conformance, upstream
    from coevolve.envs.webshop.tagger import load_tagger

    if options.upstream:
        human = not options.synthetic
        report = upstream.compare_checkout(options.upstream, options.python, options.episodes, human=human)
    elif options.catalogue and options.traces:
        report = conformance.replay(options.catalogue, options.traces, load_tagger(options.tagger))
    elif options.catalogue and options.goals:
        count, different = conformance.replay_goals(options.catalogue, options.goals)
        write(f"{count} human goals compared, {len(different)} different; the first: {different[:1] or 'none'}")
        return 1 if different else 0
    else:
        raise UserError("replay webshop: give --catalogue DIR and --traces or --goals FILE, or --upstream PATH.")
    write(report.text())
    return 0 if report.agrees else 1
