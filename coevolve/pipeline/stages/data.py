"""The tasks that are fine-tuned on, explored and evaluated, the experts of the first two, and a few-shot example."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.chat.prompts import demonstration, prompt_messages
from coevolve.errors import UserError
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import ENVIRONMENT, Stage
from coevolve.records.episodes import Task, Trajectory
from coevolve.storage import files, jsonl

if TYPE_CHECKING:
    from coevolve.envs.task_split import TaskSplit

log = logging.getLogger(__name__)


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write tasks, experts, their instruction, an example, and drops; raises `UserError` where splits overlap."""
    from coevolve.envs.registry import domain
    from coevolve.pipeline.stages.parts.environment import env_setup

    env, name = job.env, job.wildcards["env"]
    split = domain(env).select(env_setup(job))
    leaked = overlapping(split)
    if leaked and job.suite.protocol == "fixed":
        overlap = f"{len(leaked)} tasks are in training and in evaluation, `{leaked[0]}` first"
        raise UserError(f"envs.{name}.tasks: {overlap}; protocol `fixed` does not allow it: set `overlap: remove`.")
    experts = domain(env).experts(env_setup(job), split.training)
    sft_experts, explore_experts = (_of_tasks(experts.trajectories, tasks) for tasks in (split.sft, split.explore))
    if not sft_experts:
        raise UserError(f"envs.{name}.experts: no expert for any of {len(split.sft)} tasks; use another file.")
    opening, shown = instruction(sft_experts), example(sft_experts, leaked)
    if job.suite.prompt.examples and job.suite.prompt.trained:
        sft_experts, explore_experts = (_with_example(shown, each, opening) for each in (sft_experts, explore_experts))
    trained_ids = {task.task_id for task in split.training}  # a file of experts may hold other tasks, too
    drops = [*split.drops, *(drop for drop in experts.drops if drop.task_id in trained_ids)]
    jsonl.write(out / "sft.jsonl", sft_experts)
    jsonl.write(out / "experts.jsonl", explore_experts)
    jsonl.write(out / "explore.jsonl", split.explore)
    jsonl.write(out / "evaluate.jsonl", split.evaluate)
    jsonl.write(out / "drops.jsonl", drops)
    files.write_bytes(out / "instruction.txt", opening.encode())
    jsonl.write(out / "example.json", [shown])
    notes = {
        "sft": len(split.sft),
        "explore": len(split.explore),
        **Counter(task.split for task in split.evaluate),
        "overlap": len(split.overlap),
        "still_overlapping": len(leaked),
        "drops": dict(Counter(drop.reason.value for drop in drops)),
        "example": shown.task.task_id,
        "note": env.note,
    }
    log.info("%s: %s", name, notes)
    return notes


def overlapping(split: TaskSplit) -> list[str]:
    """Ids of the tasks that are in evaluation, and in fine-tuning or exploration."""
    evaluated = {task.task_id for task in split.evaluate}
    return sorted({task.task_id for task in split.training} & evaluated)


def instruction(trajectories: Sequence[Trajectory]) -> str:
    """The message before the task in the experts' prompts; agents are prompted with the same. Empty if there is none.

    Raises `UserError` if the experts have different ones.
    """
    openings = {t.prompt[0].content if len(t.prompt) > 1 else "" for t in trajectories}
    if len(openings) > 1:
        raise UserError(f"the experts' prompts open in {len(openings)} different ways; they must open in one.")
    return openings.pop()


def example(experts: Sequence[Trajectory], evaluated: Collection[str]) -> Trajectory:
    """The few-shot example: of no `evaluated` task if there is such an expert, of the first expert's task kind.

    Of these the shortest with the highest reward, and the first of several.
    """
    kind = experts[0].task.kind
    return min(experts, key=lambda t: (t.task.task_id in evaluated, t.task.kind != kind, -t.reward, len(t.turns)))


def _with_example(shown: Trajectory, experts: Sequence[Trajectory], instruction: str) -> list[Trajectory]:
    """The experts with the few-shot example in their prompts."""
    prompt = functools.partial(prompt_messages, instruction=instruction, example=demonstration(shown))
    return [expert.model_copy(update={"prompt": prompt(expert.prompt[-1].content)}) for expert in experts]


def _of_tasks(trajectories: Sequence[Trajectory], tasks: Sequence[Task]) -> list[Trajectory]:
    """The trajectories of these tasks, in the order of the tasks."""
    by_task = {trajectory.task.task_id: trajectory for trajectory in trajectories}
    return [by_task[task.task_id] for task in tasks if task.task_id in by_task]


STAGE = Stage(
    help="Select the tasks of SFT, exploration and evaluation, and their expert trajectories; count drops.",
    run=run,
    reads=(*ENVIRONMENT, "prompt"),
    files=(
        "sft.jsonl",
        "experts.jsonl",
        "explore.jsonl",
        "evaluate.jsonl",
        "drops.jsonl",
        "instruction.txt",
        "example.json",
    ),
    modules=("domain",),
)
