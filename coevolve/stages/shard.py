"""One part of a rollout or evaluation; the stages `rollout` and `evaluate` join the parts."""

from collections.abc import Sequence
from pathlib import Path

from coevolve.records.episodes import Task
from coevolve.records.evaluation import EpisodeNotes
from coevolve.run.job import Job
from coevolve.stages.parts import playing
from coevolve.storage import jsonl


def run(job: Job, out: Path) -> EpisodeNotes:
    """Write `episodes.jsonl` of this part's tasks."""
    number, of = map(int, job.wildcards["part"].split("of"))
    tasks = part(job.records("tasks", Task), number, of)
    episodes = (playing.evaluate if job.wildcards["whole"] == "eval" else playing.explore)(job, tasks)
    jsonl.write(out / "episodes.jsonl", episodes)
    return playing.counts(job, episodes)


def part(tasks: Sequence[Task], number: int, of: int) -> list[Task]:
    """Part `number` (from 1) of the tasks; all listings of a task are in the same part."""
    order = {task_id: index for index, task_id in enumerate(dict.fromkeys(task.task_id for task in tasks))}
    return [task for task in tasks if order[task.task_id] % of == number - 1]
