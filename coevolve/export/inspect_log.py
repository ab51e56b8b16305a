"""An evaluation as a log of Inspect: format version 2, as inspect-ai 0.3.285 reads it."""

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from coevolve import __version__
from coevolve.records.episodes import StopReason, Trajectory, turn_messages
from coevolve.report import evaluation_result
from coevolve.report.evaluation_result import EvaluationResult
from coevolve.storage import files, jsonl, provenance

#: Inspect's stop reasons of the last completion.
_STOPS = {
    StopReason.DONE: "stop",
    StopReason.CONTEXT: "model_length",
    StopReason.CONTENT_FILTER: "content_filter",
}


def write(folder: Path, out: Path) -> Path:
    """Write the evaluation in `folder` to a JSON file in the folder `out`; returns the file.

    Inspect lists only logs whose names have the form time, task and id.
    """
    result = evaluation_result.from_folder(folder)
    episodes = jsonl.read(folder / "episodes.jsonl", Trajectory)
    digest = hashlib.sha256("".join(episode.digest() for episode in episodes).encode()).hexdigest()[:12]
    path = out / f"{result.started.replace(':', '-')}_{episodes[0].task.env}_{digest}.json"
    seconds = provenance.read(folder / provenance.NAME).seconds
    files.write_json(path, _log(result, episodes, timedelta(seconds=round(seconds))))
    return path


def _log(result: EvaluationResult, episodes: Sequence[Trajectory], took: timedelta) -> dict[str, Any]:
    completed = (datetime.fromisoformat(result.started) + took).isoformat()
    task, ids = str(result.settings["environment"]), list(dict.fromkeys(e.task.task_id for e in episodes))
    epochs = max(episode.sample for episode in episodes) + 1
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "created": result.started,
            "task": f"coevolve/{task}",
            "dataset": {"name": task, "samples": len(ids), "sample_ids": ids},
            "model": f"coevolve/{result.label}",
            "config": {"epochs": epochs},
            "packages": {"coevolve": __version__, **result.versions},
            "metadata": {**result.settings, "code_digest": result.code_digest, "commit": result.commit},
        },
        "plan": {},
        "results": {
            "total_samples": len(episodes),
            "completed_samples": sum(episode.stop is not StopReason.ENV_ERROR for episode in episodes),
            "scores": _scores(result),
        },
        "stats": {"started_at": result.started, "completed_at": completed},
        "samples": [_sample(episode, result.label) for episode in episodes],
    }


def _scores(result: EvaluationResult) -> list[dict[str, Any]]:
    """The evaluation's mean reward over the tasks of each split; a sample's score is its episode's reward."""
    scores = []
    for split, of_split in result.splits.items():
        metrics = {"mean": of_split.mean_reward, "stderr": (of_split.reward_deviation or 0.0) / of_split.tasks**0.5}
        scores.append(
            {
                "name": "reward" if len(result.splits) == 1 else f"reward {split}",
                "scorer": "reward",
                "metrics": {metric: {"name": metric, "value": value} for metric, value in metrics.items()},
            }
        )
    return scores


def _sample(episode: Trajectory, model: str) -> dict[str, Any]:
    prompt = [message.model_dump() for message in episode.prompt]
    last = episode.turns[-1].text if episode.turns else ""
    choice = {"message": {"role": "assistant", "content": last}, "stop_reason": _STOPS.get(episode.stop, "unknown")}
    return {
        "id": episode.task.task_id,
        "epoch": episode.sample + 1,
        "input": prompt,
        "target": "",
        "messages": prompt + [message.model_dump() for message in turn_messages(episode.turns)],
        "output": {"model": model, "choices": [choice]},
        "scores": {"reward": {"value": episode.reward, "explanation": f"stop reason: {episode.stop.value}"}},
        "metadata": {
            "split": episode.task.split,
            "kind": episode.task.kind,
            "stop": episode.stop.value,
            "turns": len(episode.turns),
            "trajectory_id": episode.digest(),
        },
        "total_time": episode.seconds,
    }
