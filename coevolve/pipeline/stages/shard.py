"""One part of a rollout or evaluation; the stages `rollout` and `evaluate` join the parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coevolve.config.suite import engine
from coevolve.pipeline import work
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import SAMPLED, Stage
from coevolve.records.episodes import Task
from coevolve.records.evaluation import EpisodeNotes
from coevolve.storage import jsonl

if TYPE_CHECKING:
    from coevolve.config.suite import Suite
    from coevolve.pipeline.stage import PlannedJob
    from coevolve.records.provenance import Workload


def run(job: Job, out: Path) -> EpisodeNotes:
    """Write `episodes.jsonl` of this part's tasks."""
    from coevolve.pipeline.stages.parts import playing

    number, of = map(int, job.wildcards["part"].split("of"))
    tasks = part(job.records("tasks", Task), number, of)
    episodes = (playing.evaluate if job.wildcards["whole"] == "eval" else playing.explore)(job, tasks)
    jsonl.write(out / "episodes.jsonl", episodes)
    return playing.counts(job, episodes)


def part(tasks: Sequence[Task], number: int, of: int) -> list[Task]:
    """Part `number` (from 1) of the tasks; all listings of a task are in the same part."""
    order = {task_id: index for index, task_id in enumerate(dict.fromkeys(task.task_id for task in tasks))}
    return [task for task in tasks if order[task.task_id] % of == number - 1]


def cost(suite: Suite, job: PlannedJob) -> Workload:
    """A part of the episodes of a rollout or an evaluation."""
    whole = work.evaluated_work if job.wildcards["whole"] == "eval" else work.explored_work
    return whole(suite, job, int(job.wildcards["part"].partition("of")[2]))


STAGE = Stage(
    help="Play one shard of a rollout or evaluation (key `shards` of the machine file).",
    run=run,
    reads=(*SAMPLED, "evaluation"),
    files=("episodes.jsonl",),
    modules=("domain",),
    plays=engine,
    cost=cost,
    image="sample",
)
