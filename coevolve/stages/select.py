"""Rejection sampling: the experts and the agent's successes, which `rft_train` trains on."""

import logging
from pathlib import Path
from typing import Any

from coevolve.chat.prompts import without_example
from coevolve.methods import rejection_sampling
from coevolve.records.episodes import Trajectory
from coevolve.run.job import Job
from coevolve.stages.parts.prompting import few_shot_example
from coevolve.storage import files, jsonl

log = logging.getLogger(__name__)


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `selected.jsonl`, `drops.jsonl` and `summary.json`; every input is selected or dropped."""
    names = [name for name in ("experts", "explored_experts") if name in job.inputs]
    experts = [expert for name in names for expert in job.records(name, Trajectory)]
    rollouts = job.records(job.agent, Trajectory) if job.agent in job.inputs else []
    result = rejection_sampling.select(job.suite.selection, experts, rollouts)
    example = few_shot_example(job, "excluded_example")
    jsonl.write(out / "selected.jsonl", (without_example(trajectory, example) for trajectory in result.selected))
    jsonl.write(out / "drops.jsonl", result.drops)
    files.write_json(out / "summary.json", result.summary)
    if rollouts and not result.summary["rollouts"]["selected"]:
        log.warning("None of the agent's %d episodes was selected.", len(rollouts))
    return result.summary
