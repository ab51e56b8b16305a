"""Rejection sampling: the experts and the agent's successes, which `rft_train` trains on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.chat.prompts import without_example
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import Stage
from coevolve.records.episodes import Trajectory
from coevolve.storage import files, jsonl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coevolve.pipeline.branch import AgentName
    from coevolve.pipeline.stage import Inputs, PlannedJob

log = logging.getLogger(__name__)


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `selected.jsonl`, `drops.jsonl` and `summary.json`; every input is selected or dropped."""
    from coevolve.methods import rejection_sampling
    from coevolve.pipeline.stages.parts.prompting import few_shot_example

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


def inputs(
    experts: PlannedJob, rollouts: Mapping[AgentName, PlannedJob], excluded: Inputs, all_experts: bool
) -> Inputs:
    """Experts, and the agent's episodes if it explores; with `all_experts` also those of the explored tasks."""
    episodes: Inputs = {agent: job["episodes.jsonl"] for agent, job in rollouts.items()}
    explored = {"explored_experts": experts["experts.jsonl"]} if all_experts else {}
    return {"experts": experts["sft.jsonl"], **episodes, **excluded, **explored}


STAGE = Stage(
    help="Select the experts and the agent's successes (RFT).",
    run=run,
    reads=("selection",),
    files=("selected.jsonl", "drops.jsonl", "summary.json"),
)
