"""The command line with recorded episodes in place of sampled ones, in one process or in those of a launch.

From the second step on weights differ by rounding, and so, now and then, a sampled token: the sums of several processes
are compared on the same episodes.
"""

import contextlib
import os
from collections import Counter
from pathlib import Path

from coevolve import cli
from coevolve.records.episodes import Trajectory
from coevolve.run import launch
from coevolve.storage import jsonl
from coevolve.train.online import Explorer

_recorded = {}
_on_this_node = launch._on_this_node


def play(self, model, step, tasks, part=slice(None)):
    """`Explorer.play` from records; the step's number stands in the name of the policy that played."""
    self._player.refresh(model)
    counts, keys = Counter(), []
    for task in tasks:
        keys.append((step, task.task_id, counts[task.task_id]))
        counts[task.task_id] += 1
    with contextlib.closing(jsonl.Journal(self.journal(step), Trajectory)) as journal:
        for key in keys[part]:
            journal.append(_recorded[key])
    return [_recorded[key] for key in keys[part]]


def launch_replayed(wanted, options):
    _on_this_node(wanted, ["replayed" if word == "coevolve" else word for word in options])


if __name__ == "__main__":
    for each in jsonl.read(Path(os.environ["REPLAYED"]), Trajectory):
        _recorded[int(each.policy.name.rpartition("@")[2]), each.task.task_id, each.sample] = each
    Explorer.play = play
    launch._on_this_node = launch_replayed
    cli.main()
