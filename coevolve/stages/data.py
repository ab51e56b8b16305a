"""Which tasks are fine-tuned on, explored and evaluated, the experts of the first two, and one as an example."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from coevolve.chat.prompts import demonstration, prompt_messages
from coevolve.envs.base import TaskSplit
from coevolve.envs.experts import Experts
from coevolve.envs.registry import domain
from coevolve.errors import UserError
from coevolve.storage import files, jsonl
from coevolve.types import Drop, Task, Trajectory
from coevolve.workflow.job import Job

log = logging.getLogger(__name__)


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write tasks, experts, their instruction, an example, and drops; raises `UserError` where splits overlap."""
    env, name = job.env, job.wildcards["env"]
    selection = domain(env).select(job.setup)
    leaked = overlapping(selection)
    if leaked and job.suite.protocol == "fixed":
        where = f"{len(leaked)} tasks are in training and in evaluation, `{leaked[0]}` first"
        raise UserError(f"envs.{name}.tasks: {where}; protocol `fixed` does not allow it: set `overlap: remove`.")
    found = domain(env).experts(job.setup, selection.training)
    tuned, guides = _of(found.trajectories, selection.sft), _of(found.trajectories, selection.explore)
    if not tuned:
        raise UserError(f"envs.{name}.experts: no expert for any of {len(selection.sft)} tasks; take another file.")
    said, shown = instruction(tuned), example(tuned, leaked)
    if job.suite.prompt.examples and job.suite.prompt.trained:
        tuned, guides = ([_after(shown, one, said) for one in experts] for experts in (tuned, guides))
    drops = [*selection.drops, *_own(found, selection.training)]
    jsonl.write(out / "sft.jsonl", tuned)
    jsonl.write(out / "experts.jsonl", guides)
    jsonl.write(out / "explore.jsonl", selection.explore)
    jsonl.write(out / "evaluate.jsonl", selection.evaluate)
    jsonl.write(out / "drops.jsonl", drops)
    files.write_bytes(out / "instruction.txt", said.encode())
    jsonl.write(out / "example.json", [shown])
    counts = {"sft": len(selection.sft), "explore": len(selection.explore)} | _splits(selection.evaluate)
    notes = {
        **counts,
        "overlap": len(selection.overlap),
        "still_overlapping": len(leaked),
        "drops": _reasons(drops),
        "example": shown.task.task_id,
        "note": env.note,
    }
    log.info("%s: %s", name, notes)
    return notes


def overlapping(selection: TaskSplit) -> list[str]:
    """Ids of the tasks that are fine-tuned on or explored, and evaluated too."""
    evaluated = {task.task_id for task in selection.evaluate}
    return sorted({task.task_id for task in selection.training} & evaluated)


def instruction(trajectories: Sequence[Trajectory]) -> str:
    """What the experts' prompts say before the task: agents that learn from them are asked in the same words."""
    openings = {t.prompt[0].content if len(t.prompt) > 1 else "" for t in trajectories}
    if len(openings) > 1:
        raise UserError(f"the experts' prompts open in {len(openings)} different ways; they must open in one.")
    return openings.pop()


def example(experts: Sequence[Trajectory], evaluated: Collection[str]) -> Trajectory:
    """The expert that others are shown: of no `evaluated` task if there is one, of the first expert's task kind.

    Of these the shortest of the highest reward, the first where several are.
    """
    kind = experts[0].task.kind
    return min(experts, key=lambda t: (t.task.task_id in evaluated, t.task.kind != kind, -t.reward, len(t.turns)))


def _after(shown: Trajectory, expert: Trajectory, instruction: str) -> Trajectory:
    """The expert as if asked after the example."""
    prompt = prompt_messages(expert.prompt[-1].content, instruction=instruction, example=demonstration(shown))
    return expert.model_copy(update={"prompt": prompt})


def _own(found: Experts, tasks: Sequence[Task]) -> list[Drop]:
    """Drops that concern these tasks: a file of experts also holds other tasks', which is no loss."""
    ids = {task.task_id for task in tasks}
    return [drop for drop in found.drops if drop.task_id in ids]


def _of(trajectories: Sequence[Trajectory], tasks: Sequence[Task]) -> list[Trajectory]:
    """The trajectories of these tasks, in their order."""
    by_task = {trajectory.task.task_id: trajectory for trajectory in trajectories}
    return [by_task[task.task_id] for task in tasks if task.task_id in by_task]


def _splits(tasks: Sequence[Task]) -> dict[str, int]:
    return dict(Counter(task.split for task in tasks))


def _reasons(drops: Sequence[Drop]) -> dict[str, int]:
    return dict(Counter(drop.reason.value for drop in drops))
