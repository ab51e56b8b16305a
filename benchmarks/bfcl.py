"""BFCL's gold conversations, played here and by the wheel's own executor and checker in one run.

    python benchmarks/bfcl.py

Both sides call the same tools and grade every user turn. Each repetition plays all base scenarios,
the sides alternately.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from tabulate import tabulate

from coevolve.envs.bfcl import scenarios, upstream
from coevolve.envs.bfcl.env import Episode
from coevolve.envs.bfcl.scenarios import Scenario


def play_here(scenario: Scenario) -> None:
    episode = Episode(scenario, skip_empty=False)
    for turn in scenario.turns:
        for call in turn.gold:
            episode.call(call)
        episode.end_turn()
    assert episode.success


def play_upstream(scenario: Scenario) -> None:
    """Upstream plays an episode and grades it afterwards, which executes its calls a second time."""
    for turn in scenario.turns:
        upstream.execute(scenario, turn.gold)
    assert upstream.is_valid(scenario, [list(turn.gold) for turn in scenario.turns])
    upstream.forget()


def seconds(play: Callable[[Scenario], None]) -> float:
    begin = time.process_time()
    for scenario in scenarios.scenarios("base"):
        play(scenario)
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    repetitions = parser.parse_args().repetitions
    sides = {"coevolve": play_here, "upstream": play_upstream}
    for play in sides.values():
        seconds(play)
    times = {name: [] for name in sides}
    for _ in range(repetitions):
        for name, play in sides.items():
            times[name].append(seconds(play))
    base = scenarios.scenarios("base")
    steps = sum(len(turn.gold) for scenario in base for turn in scenario.turns)
    rows = [
        (name, len(base) / statistics.median(taken), steps / statistics.median(taken)) for name, taken in times.items()
    ]
    print(tabulate(rows, headers=("", "episodes/s", "gold calls/s"), floatfmt=",.0f"))
    ratios = [there / here for here, there in zip(times["coevolve"], times["upstream"], strict=True)]
    print(f"ratio: {statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})")


if __name__ == "__main__":
    main()
