"""Signals of a round's training episodes: forgetting, boundary and rare, without extra sampling."""

import functools
import logging
from collections import Counter
from pathlib import Path
from typing import Any

from coevolve.envs.synthesis import synthesis
from coevolve.methods.task_evolution.records import PoolTask
from coevolve.methods.task_evolution.signals import find_signals
from coevolve.records.episodes import Trajectory
from coevolve.run.job import Job
from coevolve.stages.parts.environment import env_setup
from coevolve.storage import files, jsonl

log = logging.getLogger(__name__)


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `signals.jsonl`, the signals of the last round, and their numbers by kind, `summary.json`."""
    tasks = synthesis(job.env)
    rounds = [
        [episode for path in job.inputs[f"round{number}"] for episode in jsonl.read(path, Trajectory)]
        for number in range(1, job.branch.iteration)
    ]
    solutions = {each.task.task_id: each.solution for each in job.records("pool", PoolTask)}
    executed = functools.partial(tasks.executed, env_setup(job))
    signals = find_signals(job.suite.task_evolution, rounds, solutions, executed, tasks.pattern)
    jsonl.write(out / "signals.jsonl", signals)
    counts = Counter(signal.kind for signal in signals)
    summary: dict[str, Any] = {kind: counts[kind] for kind in job.suite.task_evolution.signals}
    files.write_json(out / "summary.json", summary)
    log.info("signals of round %d: %s", job.branch.iteration - 1, summary)
    return summary
