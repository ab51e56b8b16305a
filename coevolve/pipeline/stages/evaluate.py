"""Evaluation: the target agent plays every evaluation task; once, greedily, or several times for Best-of-N."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coevolve.config.suite import engine, quirks
from coevolve.pipeline import work
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import SAMPLED, Stage
from coevolve.records.episodes import StopReason, Task, Trajectory
from coevolve.records.evaluation import EpisodeNotes, EvalRecord, turn_flaws
from coevolve.settings.protocol import Quirks
from coevolve.storage import jsonl


def run(job: Job, out: Path) -> EpisodeNotes:
    """Write `episodes.jsonl`, all samples, and, for statistics, `records.jsonl`, the best of each task."""
    from coevolve.pipeline.stages.parts import playing

    tasks, samples, parts = job.records("tasks", Task), job.suite.evaluation.samples, job.inputs.get("parts", [])
    episodes = playing.joined(parts, tasks, samples) if parts else playing.evaluate(job, tasks)
    scored = records(episodes, quirks(job.suite), job.branch.seed, samples, job.env.needs_actions)
    jsonl.write(out / "episodes.jsonl", episodes)
    jsonl.write(out / "records.jsonl", scored)
    return playing.counts(job, episodes, left_out=len(tasks) - len(scored))


def records(
    episodes: Sequence[Trajectory], switches: Quirks, seed: int, samples: int = 1, needs_actions: bool = True
) -> list[EvalRecord]:
    """The records that means are taken of: of every `samples` episodes of a task the best, the first of several.

    With `env_error: exclude`, episodes that ended by an error of the environment do not count; a task with no other
    episode has no record.
    """
    counted = [
        [e for e in episodes[i : i + samples] if e.stop is not StopReason.ENV_ERROR or switches.env_error == "zero"]
        for i in range(0, len(episodes), samples)
    ]
    best = [(max(group, key=lambda e: e.reward), len(group)) for group in counted if group]
    return [_record(episode, switches, seed, count, needs_actions) for episode, count in best]


def _record(episode: Trajectory, switches: Quirks, seed: int, samples: int, needs_actions: bool) -> EvalRecord:
    return EvalRecord(
        task_id=episode.task.task_id,
        split=episode.task.split,
        seed=seed,
        environment=episode.environment,
        reward=episode.reward,
        success=episode.stop is StopReason.DONE if switches.success == "any_ending" else not episode.is_failure,
        stop=episode.stop,
        turns=len(episode.turns),
        trajectory_id=episode.digest(),
        samples=samples,
        flaws=turn_flaws(episode.turns, needs_actions),
    )


STAGE = Stage(
    help="Play the evaluation tasks with the target agent.",
    run=run,
    reads=(*SAMPLED, "evaluation"),
    files=("episodes.jsonl", "records.jsonl"),
    modules=("domain",),
    plays=engine,
    cost=work.evaluated_work,
    image="sample",
)
