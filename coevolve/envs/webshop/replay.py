"""Compares the human goals with upstream's published list: `coevolve replay webshop`."""

import argparse
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

HELP = "Compare the human goals of upstream's product files with upstream's published list."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `run`."""
    parser.add_argument(
        "--catalogue", type=Path, required=True, metavar="DIR", help="folder with upstream's product files"
    )
    parser.add_argument("--goals", type=Path, required=True, metavar="FILE", help="upstream's human_goals.json")


def run(options: argparse.Namespace, write: Callable[[str], None]) -> int:
    """Writes the number of goals and the first that differs; returns 1 if one differs, else 0."""
    from coevolve.envs.webshop.goals import check_human_goals, draw_prices_and_goals
    from coevolve.envs.webshop.shop import Shop

    with tempfile.TemporaryDirectory() as folder:
        # The order and the compared texts do not depend on the drawn prices.
        shop = Shop.build(options.catalogue, Path(folder) / "shop")
        _, goals = draw_prices_and_goals(shop, random.Random(0), human=True)
    different = check_human_goals(goals, options.goals)
    write(f"{len(goals)} human goals compared, {len(different)} different; the first: {different[:1] or 'none'}")
    return 1 if different else 0
