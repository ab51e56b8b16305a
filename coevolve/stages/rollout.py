"""Exploration: one agent plays every training task k times."""

from pathlib import Path

from coevolve.records.episodes import Task
from coevolve.records.evaluation import EpisodeNotes
from coevolve.run.job import Job
from coevolve.stages.parts import playing
from coevolve.storage import jsonl


def run(job: Job, out: Path) -> EpisodeNotes:
    """Write `episodes.jsonl` in task order: played here, or in parts by other jobs."""
    tasks, parts = job.records("tasks", Task), job.inputs.get("parts", [])
    episodes = playing.joined(parts, tasks, job.suite.rollout.k) if parts else playing.explore(job, tasks)
    jsonl.write(out / "episodes.jsonl", episodes)
    return playing.counts(job, episodes)
