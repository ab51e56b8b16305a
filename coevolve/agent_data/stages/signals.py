"""Signals of a round's training episodes: forgetting, boundary and rare, without extra sampling."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coevolve.agent_data.records import PoolTask
from coevolve.agent_data.signals import find_signals
from coevolve.pipeline.branch import AgentName
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import ENVIRONMENT, Inputs, PlannedJob, Stage
from coevolve.records.episodes import Trajectory
from coevolve.storage import files, jsonl

log = logging.getLogger(__name__)


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `signals.jsonl`, the signals of the last round, and their numbers by kind, `summary.json`."""
    from coevolve.envs.synthesis import synthesis
    from coevolve.pipeline.stages.parts.environment import env_setup

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


def inputs(pool: PlannedJob, rounds: Mapping[int, Mapping[AgentName, str]]) -> Inputs:
    """The last round's pool, and all agents' training episodes of the earlier rounds (`round1`, ...)."""
    of_rounds: Inputs = {f"round{number}": [*paths.values()] for number, paths in rounds.items()}
    return {"pool": pool["pool.jsonl"], **of_rounds}


STAGE = Stage(
    help="Compute the signals of a round's training episodes: forgetting, boundary, rare.",
    run=run,
    reads=(*ENVIRONMENT, "task_evolution"),
    files=("signals.jsonl", "summary.json"),
    modules=("synthesis",),
)
