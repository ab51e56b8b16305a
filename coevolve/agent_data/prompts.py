"""The prompts of explorers that are models, and how their replies are read. They are the kit's, not the paper's."""

from collections.abc import Sequence

from coevolve.agent_data.records import TaskSignal
from coevolve.chat.prompts import prompt_messages
from coevolve.envs.synthesis import TaskDraft
from coevolve.records.episodes import Message

EXPLORE = """\
Explore this environment: there is no request to fulfil. Try {actions} actions that depend on each other and that a \
user could ask for. Use the values that you see, not invented ones.{context}"""
FORGETTING = """
An agent solved the task below and now fails it. Explore what is needed for it and for similar tasks."""
BOUNDARY = """
An agent solves the task below in some attempts only. Explore what is needed for it and for similar tasks."""
RARE = """
An agent almost never uses the action `{pattern}`, which it used in the task below. Explore what it is good for."""
SIGNAL_TASK = """
Task: {task}
Actions: {actions}"""
CONTEXTS = {"forgetting": FORGETTING, "boundary": BOUNDARY, "rare": RARE}

ABSTRACT = """\
Below are actions that were executed in an environment, each with its observation. Write the task that a user would \
have given for them. Name every value that the actions need and that no observation before them shows; name no action \
and no tool. Reply in this form and write nothing else:
Task: the request, on one line
Solution:
one action per line, copied from below, only those that the task needs

{actions}"""
#: The longest observation in the prompt ABSTRACT, in characters.
LONGEST_OBSERVATION = 500


def exploration_prompt(signal: TaskSignal | None, actions: int) -> str:
    """The instruction of an open task: explore, near the task of the signal if there is one."""
    if signal is None:
        return EXPLORE.format(actions=actions, context="")
    task = str(signal.task.data.get("request", signal.task.task_id))
    example = SIGNAL_TASK.format(task=task, actions="; ".join(signal.actions))
    context = CONTEXTS[signal.kind].replace("{pattern}", signal.pattern) + example
    return EXPLORE.format(actions=actions, context=context)


def abstraction_prompt(actions: Sequence[tuple[str, str]]) -> tuple[Message, ...]:
    """The conversation that asks for a task for the executed `actions`, each with its observation."""
    lines = (f"{action}\n-> {observation[:LONGEST_OBSERVATION]}" for action, observation in actions)
    return prompt_messages(ABSTRACT.replace("{actions}", "\n".join(lines)))


def read_draft(reply: str, actions: Sequence[str]) -> TaskDraft | None:
    """The task in a model's reply; without a solution, all `actions` are the solution. None if there is no task."""
    _, marker, rest = reply.partition("Task:")
    request, _, solution = rest.partition("Solution:")
    lines = [line.strip() for line in solution.splitlines() if line.strip()]
    instruction = " ".join(request.split())
    if not marker or not instruction or any(line not in actions for line in lines):
        return None
    return TaskDraft(instruction, tuple(lines) or tuple(actions))
