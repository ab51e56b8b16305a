"""Exploration: one agent plays every training task k times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevolve import store
from coevolve.stages.episodes import counts, play
from coevolve.stages.job import Job
from coevolve.types import Task


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `episodes.jsonl` in task order."""
    tasks = job.records("tasks", Task)
    episodes = play(job, tasks, temperature=job.suite.quirks.exploration_temperature, samples=job.suite.rollout.k)
    store.write(out / "episodes.jsonl", episodes)
    return counts(episodes)
