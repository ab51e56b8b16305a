"""Evaluation: the target agent plays every evaluation task once, greedily."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coevolve import store
from coevolve.config import Quirks
from coevolve.stages.episodes import counts, evaluation, gathered
from coevolve.stages.job import Job
from coevolve.types import EvalRecord, StopReason, Task, Trajectory


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `episodes.jsonl` and, for statistics, `records.jsonl`."""
    episodes = (gathered if "parts" in job.inputs else evaluation)(job, job.records("tasks", Task))
    scored = records(episodes, job.suite.quirks, job.branch.seed)
    store.write(out / "episodes.jsonl", episodes)
    store.write(out / "records.jsonl", scored)
    return {**counts(episodes), "left_out": len(episodes) - len(scored)}


def records(episodes: Sequence[Trajectory], quirks: Quirks, seed: int) -> list[EvalRecord]:
    """What counts towards a mean: all episodes, or (`env_error: exclude`) those the environment did not break."""
    counted = [e for e in episodes if e.stop is not StopReason.ENV_ERROR or quirks.env_error == "zero"]
    return [
        EvalRecord(
            task_id=episode.task.task_id,
            split=episode.task.split,
            seed=seed,
            environment=episode.environment,
            reward=episode.reward,
            success=_success(episode, quirks),
            stop=episode.stop,
            turns=len(episode.turns),
            trajectory_id=episode.digest(),
        )
        for episode in counted
    ]


def _success(episode: Trajectory, quirks: Quirks) -> bool:
    if quirks.success == "any_ending":
        return episode.stop is StopReason.DONE
    return not episode.is_failure
