"""What a shop costs a worker as the catalogue grows, beside upstream's figures (not measured here: see UPSTREAM).

    python benchmarks/webshop.py --products 10000 100000
    python benchmarks/webshop.py --shops DIR...      # shops that are built already

Each size is generated and built in a temporary folder, then opened in a fresh process, which plays episodes: a search
for the instruction, the first result, an option where there is one, its description and back, and the purchase.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tabulate import tabulate
from webshop_search import anonymous_mb

from coevolve.envs.webshop.catalogue_generator import ProductShares, generate
from coevolve.envs.webshop.goals import draw_prices_and_goals
from coevolve.envs.webshop.session import ShopSession
from coevolve.envs.webshop.shop import Shop
from coevolve.envs.webshop.tagger import load_tagger

EPISODES = 200
COLUMNS = ("start ms", "memory MB", "reset ms", "search ms", "click ms", "buy ms")
#: Of upstream's own code, from the kit's notes on it: measured earlier and apart from this benchmark.
UPSTREAM = (
    ("upstream, 1,000", "5,400 to 10,400", "474 and more", "4 to 13", "42 to 132", "14 to 47", "14 to 47"),
    ("upstream, 100,000", "24,000 to 29,000", "1,600", "", "", "", ""),
    ("upstream, 1,181,430", "180,000 to 240,000", "14,000 to 16,000", "", "", "", ""),
)

Row = dict[str, float]


def build(products: int, folder: Path) -> dict[str, float]:
    """Seconds to generate a catalogue and to build its shop in `folder`, and the shop's megabytes."""
    share = min(1.0, 2000 / products)
    began = time.perf_counter()
    generate(folder / "catalogue", products, shares=ProductShares(human=share))
    generated = time.perf_counter()
    Shop.build(folder / "catalogue", folder / "shop", workers=os.cpu_count() or 1)
    built = time.perf_counter()
    size = sum(path.stat().st_size for path in (folder / "shop").rglob("*") if path.is_file()) / 1e6
    return {"generate s": generated - began, "build s": built - generated, "disk MB": size}


def measure(folder: Path) -> Row:
    """What a process pays that shops in `folder`: time until the first episode can begin, median milliseconds
    of a step, and memory that no other process can share.
    """
    memory, began = anonymous_mb(), time.perf_counter()
    shop, tagger = Shop(folder), load_tagger("approximate")
    prices, goals = draw_prices_and_goals(shop, random.Random(0), human=True)
    started = time.perf_counter() - began
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    rng = random.Random(0)
    for _ in range(EPISODES):
        goal = rng.choice(goals)
        opened = time.perf_counter()
        session = ShopSession(shop, prices, tagger, goal, rng)
        seconds["reset"].append(time.perf_counter() - opened)
        play(session, goal.instruction, seconds)
    medians = {f"{name} ms": 1000 * statistics.median(times) for name, times in seconds.items()}
    return {"products": len(shop), "start ms": 1000 * started, "memory MB": anonymous_mb() - memory, **medians}


def play(session: ShopSession, instruction: str, seconds: defaultdict[str, list[float]]) -> None:
    """One episode; how long each step took is added to `seconds`."""

    def timed(name: str, action: str) -> None:
        began = time.perf_counter()
        session.step(action)
        seconds[name].append(time.perf_counter() - began)

    timed("search", f"search[{instruction}]")
    timed("click", f"click[{list(session.page.clickables)[2]}]")
    for action in (f"click[{list(session.page.clickables)[-1]}]", "click[description]", "click[< prev]"):
        if action != "click[buy now]":
            timed("click", action)
    timed("buy", "click[buy now]")


def fresh(folder: Path) -> Row:
    """`measure` in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, folder).result()


def table(rows: list[Row]) -> str:
    """Ours by size, how much each cost grows from the smallest to the largest, and upstream's own."""
    cells = [[f"{row['products']:,.0f}", *(f"{row[name]:,.2f}" for name in COLUMNS)] for row in rows]
    if len(rows) > 1:
        growth = rows[-1]["products"] / rows[0]["products"]
        cells.append([f"growth at x {growth:.0f}", *(f"x {rows[-1][name] / rows[0][name]:.1f}" for name in COLUMNS)])
    return tabulate([*cells, *UPSTREAM], ["products", *COLUMNS], disable_numparse=True, stralign="right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--products", type=int, nargs="+", default=[10_000])
    parser.add_argument("--shops", type=Path, nargs="+", help="measure these, build nothing")
    arguments = parser.parse_args()
    if arguments.shops:
        print(table([fresh(folder) for folder in arguments.shops]))
        return
    rows, builds = [], []
    for products in arguments.products:
        with tempfile.TemporaryDirectory() as folder:
            builds.append({"products": products, **build(products, Path(folder))})
            rows.append(fresh(Path(folder) / "shop"))
    print(tabulate(builds, "keys", floatfmt=",.1f", intfmt=","), table(rows), sep="\n\n")


if __name__ == "__main__":
    main()
