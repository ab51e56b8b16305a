"""Episodes to preference pairs, by the recipe of the method (eq. 6 and 8)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.pipeline import work
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import Stage
from coevolve.records.episodes import Agent, Task, Trajectory
from coevolve.records.pairs import PairingSummary
from coevolve.storage import files, jsonl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coevolve.config.suite import Suite
    from coevolve.methods.pairing import Pairing
    from coevolve.pipeline.branch import AgentName
    from coevolve.pipeline.stage import Inputs, PlannedJob
    from coevolve.records.provenance import Workload

log = logging.getLogger(__name__)


PAIRS = ("pairs.jsonl", "drops.jsonl", "summary.json")


def run(job: Job, out: Path) -> PairingSummary:
    """Write `pairs.jsonl`, `drops.jsonl` and `summary.json`; every candidate is a pair or a drop."""
    from coevolve.methods import pairing
    from coevolve.pipeline.stages.parts.prompting import few_shot_example

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
    from coevolve.methods import pairing

    jsonl.write(out / "pairs.jsonl", result.pairs)
    jsonl.write(out / "drops.jsonl", result.drops)
    summary = pairing.summary(result).model_copy(update=notes)
    files.write_json(out / "summary.json", summary.model_dump(mode="json"))
    for sentence in summary.empty:
        log.warning("%s", sentence)
    return summary


def inputs(explored: PlannedJob, rollouts: Mapping[AgentName, PlannedJob], excluded: Inputs) -> Inputs:
    """Explored tasks, experts and the episodes of all exploring agents."""
    episodes: Inputs = {agent: job["episodes.jsonl"] for agent, job in rollouts.items()}
    return {"tasks": explored["explore.jsonl"], "experts": explored["experts.jsonl"], **episodes, **excluded}


def cost(suite: Suite, job: PlannedJob) -> Workload:
    """Pairs on disk."""
    from coevolve.records.provenance import Workload

    configured, expected = work.setting(suite, job)
    return Workload(kept=work.pair_tokens(configured, job.subject.branch, job.agent, expected))


STAGE = Stage(
    help="Build preference pairs of episodes by the method's recipe (eq. 6 and 8).",
    run=run,
    reads=("recipes", "pairing"),
    files=PAIRS,
    cost=cost,
)
