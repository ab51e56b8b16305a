"""The command line as a rank of a launch, with the episodes of another training of the same job in place of its own.

From the second step on weights differ by rounding, and so, now and then, a sampled token.
"""

import contextlib
import os
from collections import Counter
from pathlib import Path

from coevolve import cli
from coevolve.records.episodes import Trajectory
from coevolve.storage import jsonl
from coevolve.train.online import Explorer


def replay(recorded, player, step, tasks, part=slice(None)):
    """`Explorer.play` from records; the step's number stands in the name of the policy that played."""
    player._player.refresh(recorded.pop("model"))
    counts, keys = Counter(), []
    for task in tasks:
        keys.append((step, task.task_id, counts[task.task_id]))
        counts[task.task_id] += 1
    with contextlib.closing(jsonl.Journal(player.journal(step), Trajectory)) as journal:
        for key in keys[part]:
            journal.append(recorded[key])
    return [recorded[key] for key in keys[part]]


def main():
    episodes = jsonl.read(Path(os.environ["REPLAYED"]), Trajectory)
    recorded = {(int(each.policy.name.rsplit("@")[1]), each.task.task_id, each.sample): each for each in episodes}

    def play(self, model, step, tasks, part=slice(None)):
        return replay({**recorded, "model": model}, self, step, tasks, part)

    Explorer.play = play
    cli.main()


if __name__ == "__main__":
    main()
