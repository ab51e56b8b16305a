"""Searches and clicks per second of many shoppers at once, by the processes they live in (0: this one).

    python benchmarks/webshop_processes.py --products 100000 --processes 0 1 2

The shop is generated and built in a temporary folder. All pools are open at once and take turns, so that what else
runs on the machine meets each of them; a figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml
from tabulate import tabulate

from coevolve.envs.base import Env, Setup
from coevolve.envs.webshop import prepared_shop
from coevolve.envs.webshop.config import WebShopConfig
from coevolve.envs.workers import environments
from coevolve.records.episodes import Task
from coevolve.settings.protocol import Quirks

CONFIGS = Path(__file__).parents[1] / "configs"
SECTION = CONFIGS / "envs" / "webshop-small.yaml"
SEARCHES, CLICKS = 4, 20
HEADERS = ["processes", "searches/s", "ratio", "clicks/s", "ratio"]


def setups(products: int, counts: Sequence[int], folder: Path) -> list[Setup]:
    """A shop of so many products, prepared in `folder`, with environments in each number of processes."""
    section = yaml.safe_load(SECTION.read_text())["envs"]["webshop"]
    section |= {"catalogue": {"generated": products}, "goals": "human", "observation_length": None, "step_limit": 1000}
    quirks = yaml.safe_load((CONFIGS / "parts/protocols.yaml").read_text())["protocols"]["fixed"]
    configs = [WebShopConfig.model_validate({**section, "processes": count}) for count in counts]
    prepared_shop.prepare(configs[0], "envs.webshop", folder)
    return [Setup(config, "envs.webshop", "fixed", Quirks.model_validate(quirks), folder) for config in configs]


def per_second(envs: Sequence[Env], actions: Sequence[Sequence[str]]) -> float:
    """Steps per second of all environments together, each doing its own `actions`."""

    def act(env: Env, own: Sequence[str]) -> None:
        for action in own:
            env.step(action)

    began = time.perf_counter()
    with ThreadPoolExecutor(len(envs)) as threads:
        list(threads.map(act, envs, actions))
    return sum(map(len, actions)) / (time.perf_counter() - began)


def measure(envs: Sequence[Env], instructions: Sequence[str], turn: int) -> tuple[float, float]:
    """Searches and clicks per second in the `turn`-th round, in which every shopper searches for something new."""
    for number, env in enumerate(envs):
        env.start(Task(env="webshop", task_id=str(number), split="train", data={"goal": number}))
    first = turn * SEARCHES * len(envs)
    wanted = [instructions[(first + i) % len(instructions)] for i in range(SEARCHES * len(envs))]
    searches = [[f"search[{text}]" for text in wanted[i :: len(envs)]] for i in range(len(envs))]
    return per_second(envs, searches), per_second(
        envs, [["click[next >]", "click[< prev]"] * (CLICKS // 2)] * len(envs)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--products", type=int, default=20_000)
    parser.add_argument("--processes", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--envs", type=int, default=32, help="shoppers at once")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        found = setups(arguments.products, arguments.processes, Path(folder))
        instructions = [goal.instruction for goal in prepared_shop.read_goals(Path(folder))]
        pools = [stack.enter_context(environments(setup, arguments.envs)) for setup in found]
        rounds = [[measure(envs, instructions, turn) for envs in pools] for turn in range(arguments.rounds)]
    speeds = [[statistics.median(kind) for kind in zip(*own, strict=True)] for own in zip(*rounds, strict=True)]
    rows = [
        [count, search, search / speeds[0][0], click, click / speeds[0][1]]
        for count, (search, click) in zip(arguments.processes, speeds, strict=True)
    ]
    print(tabulate(rows, HEADERS, floatfmt=("d", ".0f", ".2f", ".0f", ".2f")))


if __name__ == "__main__":
    main()
