"""How a job's tasks are asked."""

from __future__ import annotations

import functools

from coevolve.chat.prompts import demonstration, prompt_messages
from coevolve.rollout import PromptBuilder
from coevolve.types import Message, Trajectory
from coevolve.workflow.job import Job


def asking(job: Job) -> PromptBuilder:
    """A task's prompt: the experts' instruction, the example where the job is given one, the task."""
    instruction = job.file("instruction").read_text(encoding="utf-8")
    return functools.partial(prompt_messages, instruction=instruction, example=example(job, "example"))


def example(job: Job, name: str) -> tuple[Message, ...]:
    """The episode in the input called `name` as messages; none where the job has no such input."""
    return demonstration(job.records(name, Trajectory)[0]) if name in job.inputs else ()
