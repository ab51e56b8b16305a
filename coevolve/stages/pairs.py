"""Episodes to preference pairs, by the recipe of the method (eq. 6 and 8)."""

import logging
from pathlib import Path
from typing import Any

from coevolve.methods import pairing
from coevolve.methods.pairing import Pairing
from coevolve.records.episodes import Agent, Task, Trajectory
from coevolve.records.pairs import PairingSummary
from coevolve.run.job import Job
from coevolve.stages.parts.prompting import few_shot_example
from coevolve.storage import files, jsonl

log = logging.getLogger(__name__)


def run(job: Job, out: Path) -> PairingSummary:
    """Write `pairs.jsonl`, `drops.jsonl` and `summary.json`; every candidate is a pair or a drop."""
    agents: tuple[Agent, ...] = ("target", "failure")
    rollouts = {agent: job.records(agent, Trajectory) for agent in agents if agent in job.inputs}
    result = pairing.pair(
        job.recipe.agents[job.agent],
        job.suite.pairing,
        job.records("tasks", Task),
        job.records("experts", Trajectory),
        rollouts,
        excluded_example=few_shot_example(job, "excluded_example"),
    )
    return write(result, out)


def write(result: Pairing, out: Path, **notes: Any) -> PairingSummary:
    """Write `pairs.jsonl`, `drops.jsonl` and `summary.json`, with the `notes`; warn of pair kinds without a pair."""
    jsonl.write(out / "pairs.jsonl", result.pairs)
    jsonl.write(out / "drops.jsonl", result.drops)
    summary = pairing.summary(result).model_copy(update=notes)
    files.write_json(out / "summary.json", summary.model_dump(mode="json"))
    for sentence in summary.empty:
        log.warning("%s", sentence)
    return summary
