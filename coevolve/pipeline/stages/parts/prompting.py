"""How the agents of a job are prompted."""

import functools
from collections.abc import Callable

from coevolve.chat.prompts import demonstration, prompt_messages
from coevolve.pipeline.job import Job
from coevolve.records.episodes import Message, Trajectory


def few_shot_example(job: Job, name: str) -> tuple[Message, ...]:
    """The episode in the input called `name` as messages; empty if the job has no such input."""
    return demonstration(job.records(name, Trajectory)[0]) if name in job.inputs else ()


def prompt_builder(job: Job) -> Callable[[str], tuple[Message, ...]]:
    """Builds a task's prompt: the experts' instruction, the few-shot example if the job has one, the task.

    Where the policy sees one message, it is the task's.
    """
    if job.env.single_message:
        return prompt_messages
    instruction = job.file("instruction").read_text(encoding="utf-8")
    return functools.partial(prompt_messages, instruction=instruction, example=few_shot_example(job, "example"))
