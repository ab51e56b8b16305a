"""Exploration: one agent plays every training task k times, here or in the shards that this stage joins."""

from __future__ import annotations

from pathlib import Path

from coevolve.config.suite import engine
from coevolve.pipeline import work
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import SAMPLED, Stage
from coevolve.records.episodes import Task
from coevolve.records.evaluation import EpisodeNotes
from coevolve.storage import jsonl


def run(job: Job, out: Path) -> EpisodeNotes:
    """Write `episodes.jsonl` in task order: played here, or in parts by other jobs."""
    from coevolve.pipeline.stages.parts import playing

    tasks, parts = job.records("tasks", Task), job.inputs.get("parts", [])
    episodes = playing.joined(parts, tasks, job.suite.rollout.k) if parts else playing.explore(job, tasks)
    jsonl.write(out / "episodes.jsonl", episodes)
    return playing.counts(job, episodes)


STAGE = Stage(
    help="Explore the training tasks with one agent.",
    run=run,
    reads=SAMPLED,
    files=("episodes.jsonl",),
    modules=("domain",),
    plays=engine,
    cost=work.explored_work,
    image="sample",
)
