"""The command line with recorded episodes in place of sampled ones, in one process or in those of a launch.

From the second step on weights differ by rounding, and so, now and then, a sampled token: the sums of several processes
are compared on the same episodes.
"""

import contextlib
import os
from collections import Counter
from pathlib import Path
from unittest import mock

from accelerate import DistributedType, PartialState
from accelerate.state import AcceleratorState

from coevolve import cli
from coevolve.pipeline import launch
from coevolve.records.episodes import Trajectory
from coevolve.storage import jsonl
from coevolve.train.online import Explorer


def replaying(path):
    """A context in which `Explorer.play` reads the episodes of all steps from a file."""
    recorded = {}
    for each in jsonl.read(path, Trajectory):
        step = int(each.policy.name.rpartition("@")[2])  # it stands in the name of the policy that played
        recorded[step, each.task.task_id, each.sample] = each

    def play(self, model, step, tasks, part=slice(None)):
        self._player.refresh(model)
        counts, episodes = Counter(), []
        for task in tasks:
            episodes.append(recorded[step, task.task_id, counts[task.task_id]])
            counts[task.task_id] += 1
        with contextlib.closing(jsonl.Journal(self.journal(step), Trajectory)) as journal:
            for episode in episodes[part]:
                journal.append(episode)
        return episodes[part]

    return mock.patch.object(Explorer, "play", play)


def divide_over_cpus():
    """Let accelerate divide models by FSDP: it does so over GPUs alone, and takes these CPUs for some."""
    prepare = PartialState.__init__

    def prepare_as_gpus(state, *args, **kwargs):
        prepare(state, *args, **kwargs)
        if state.distributed_type is DistributedType.MULTI_CPU:
            state.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = prepare_as_gpus


if __name__ == "__main__":
    if os.environ.get("FSDP_ON_CPUS"):
        divide_over_cpus()
        launch._require_devices = lambda wanted, kind: None
    start = launch._on_this_node
    replayed = {"coevolve": "run.replayed"}  # the module that the processes of the launch run
    launch._on_this_node = lambda wanted, options: start(wanted, [replayed.get(word, word) for word in options])
    try:
        with replaying(Path(os.environ["REPLAYED"])):
            cli.main()
    finally:
        if os.environ.get("FSDP_ON_CPUS") and "RANK" in os.environ:
            assert AcceleratorState().distributed_type is DistributedType.FSDP
