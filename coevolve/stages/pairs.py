"""Episodes to preference pairs, by the recipe of the method (eq. 6 and 8)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from coevolve import pairing, store
from coevolve.stages.asking import example
from coevolve.stages.job import Job, write_json
from coevolve.types import Agent, Task, Trajectory

log = logging.getLogger(__name__)


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `pairs.jsonl`, `drops.jsonl` and `summary.json`; nothing that came in is lost (asserted in `pairing`)."""
    agents: tuple[Agent, ...] = ("target", "failure")
    rollouts = {agent: job.records(agent, Trajectory) for agent in agents if agent in job.inputs}
    result = pairing.pair(
        job.recipe.agents[job.agent],
        job.suite.pairing,
        job.records("tasks", Task),
        job.records("experts", Trajectory),
        rollouts,
        unlearned=example(job, "unlearned"),
    )
    store.write(out / "pairs.jsonl", result.pairs)
    store.write(out / "drops.jsonl", result.drops)
    summary = pairing.summary(result)
    write_json(out / "summary.json", summary)
    for sentence in summary["empty"]:
        log.warning("%s", sentence)
    return summary
