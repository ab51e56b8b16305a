"""WebShop's tagger on this machine, and the comparison of goals with upstream's list: `coevolve replay webshop`."""

import argparse
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from coevolve.assets import images
from coevolve.assets.checks import Check, run_check
from coevolve.envs.webshop.config import WebShopConfig
from coevolve.envs.webshop.tagger import MODEL, load_tagger

HELP = "Compare the human goals of upstream's product files with upstream's published list."
LOCK = Path("envs_setup/tagger.lock")
_MISSING = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{MODEL}') is None)"


def install(config: WebShopConfig) -> None:
    """Installs `LOCK` into this environment and that of vLLM; raises `UserError` if the tagger is missing then."""
    sample = images.environment("sample") / "bin/python"
    locks = {Path(sys.executable): images.packages_lock("train"), sample: images.packages_lock("sample")}
    for python, others in locks.items() if config.tagger == "spacy" and LOCK.is_file() else ():
        if python.exists() and subprocess.run([python, "-c", _MISSING], check=False).returncode:
            words = ["--quiet", "--constraint", str(others), "--requirement", str(LOCK)]
            subprocess.run([str(python), "-m", "pip", "install", *words], check=False)  # it prints why it fails
    load_tagger(config.tagger)


def check(config: WebShopConfig | None) -> Check:
    """Loads the tagger that the section names; without a section, the one that needs no package."""
    return run_check("WebShop's tagger", lambda: str(load_tagger(config.tagger if config else "approximate")))


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
