"""Rejection sampling: the experts and the agent's own successes, for `refit` to learn from."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from coevolve import selection, store
from coevolve.prompts import without_example
from coevolve.stages.asking import example
from coevolve.stages.job import Job, write_json
from coevolve.types import Trajectory

log = logging.getLogger(__name__)


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `selected.jsonl`, `drops.jsonl` and `summary.json`; nothing that came in is lost (see `selection`)."""
    experts, rollouts = job.records("experts", Trajectory), job.records(job.agent, Trajectory)
    result = selection.select(job.suite.selection, experts, rollouts)
    unlearned = example(job, "unlearned")
    store.write(
        out / "selected.jsonl",
        (one.model_copy(update={"prompt": without_example(one.prompt, unlearned)}) for one in result.selected),
    )
    store.write(out / "drops.jsonl", result.drops)
    summary = selection.summary(result)
    write_json(out / "summary.json", summary)
    if not result.own.selected:
        log.warning("None of the agent's own %d episodes was selected.", result.own.came_in)
    return summary
