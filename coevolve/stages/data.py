"""Which tasks are fine-tuned on, explored and evaluated, and the experts of the first two; drops are counted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coevolve import store
from coevolve.envs import experts
from coevolve.envs.sciworld import Selection, select
from coevolve.errors import UserError
from coevolve.stages.job import Job
from coevolve.types import Drop, Task, Trajectory

log = logging.getLogger(__name__)


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write tasks, experts, the instruction they begin with, and drops; raises `UserError` where splits overlap."""
    env, name = job.env, job.wildcards["env"]
    selection = select(env.tasks, env.splits, job.suite.quirks.overlap)
    leaked = overlapping(selection)
    if leaked and job.suite.protocol == "fixed":
        where = f"{len(leaked)} tasks are in training and in evaluation, `{leaked[0]}` first"
        raise UserError(f"envs.{name}.tasks: {where}; protocol `fixed` does not allow it: set `overlap: remove`.")
    key = f"envs.{name}.experts"
    tuned = experts.read(env.experts, selection.sft, key)
    guides = experts.read(env.experts, selection.explore, key)
    if not tuned.trajectories:
        raise UserError(f"{env.experts.path}: no expert for any of {len(selection.sft)} tasks; check `{key}`.")
    drops = [*selection.drops, *_own(tuned, selection.sft), *_own(guides, selection.explore)]
    store.write(out / "sft.jsonl", tuned.trajectories)
    store.write(out / "experts.jsonl", guides.trajectories)
    store.write(out / "explore.jsonl", selection.explore)
    store.write(out / "evaluate.jsonl", [*selection.seen, *selection.unseen])
    store.write(out / "drops.jsonl", drops)
    store.write_bytes(out / "instruction.txt", instruction(tuned.trajectories).encode())
    counts = {split: len(getattr(selection, split)) for split in ("sft", "explore", "seen", "unseen")}
    notes = {**counts, "overlap": len(selection.overlap), "still_overlapping": len(leaked), "drops": _reasons(drops)}
    log.info("%s: %s", name, notes)
    return notes


def overlapping(selection: Selection) -> list[str]:
    """Ids of the tasks that are fine-tuned on or explored, and evaluated too."""
    evaluated = {task.task_id for task in (*selection.seen, *selection.unseen)}
    return sorted({task.task_id for task in (*selection.sft, *selection.explore)} & evaluated)


def instruction(trajectories: Sequence[Trajectory]) -> str:
    """What the experts' prompts say before the task: agents that learn from them are asked in the same words."""
    openings = {t.prompt[0].content if len(t.prompt) > 1 else "" for t in trajectories}
    if len(openings) > 1:
        raise UserError(f"the experts' prompts open in {len(openings)} different ways; they must open in one.")
    return openings.pop()


def _own(found: experts.Experts, tasks: Sequence[Task]) -> list[Drop]:
    """Drops that concern these tasks: a file of experts also holds other tasks', which is no loss."""
    ids = {task.task_id for task in tasks}
    return [drop for drop in found.drops if drop.task_id in ids]


def _reasons(drops: Sequence[Drop]) -> dict[str, int]:
    return dict(Counter(drop.reason.value for drop in drops))
