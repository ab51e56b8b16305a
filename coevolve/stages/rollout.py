"""Exploration: one agent plays every training task k times."""

from __future__ import annotations

from pathlib import Path

from coevolve.storage import jsonl
from coevolve.types import EpisodeNotes, Task
from coevolve.workflow.job import Job
from coevolve.workflow.playing import counts, exploration, gathered


def run(job: Job, out: Path) -> EpisodeNotes:
    """Write `episodes.jsonl` in task order: played here, or in parts by other jobs."""
    tasks = job.records("tasks", Task)
    episodes = gathered(job, tasks, job.suite.rollout.k) if "parts" in job.inputs else exploration(job, tasks)
    jsonl.write(out / "episodes.jsonl", episodes)
    return counts(job, episodes)
