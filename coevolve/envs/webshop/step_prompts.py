"""One user message a step, filled into templates of others' code, instead of the conversation.

What fills them, and how an answer is read, is that of verl-agent at d0b9724: `WebshopEnvironmentManager`,
`SimpleMemory.fetch` and `webshop_projection`.
"""

import ast
import dataclasses
from pathlib import Path

from coevolve.envs.base import StepResult
from coevolve.envs.webshop.config import StepPrompt
from coevolve.envs.webshop.pages import SEPARATOR
from coevolve.envs.webshop.task_env import WebShopTaskEnv, observation_text
from coevolve.errors import UserError, brief
from coevolve.records.episodes import Task
from coevolve.storage import files

_OPENING, _CLOSING = "<action>", "</action>"
#: So many last characters of an answer without both tags are its action.
UNTAGGED_CHARACTERS = 20


def tagged_action(text: str) -> str:
    """The text between the first `<action>` and the first `</action>` in lower case, else the last 20 characters."""
    lowered = text.lower()
    start, end = lowered.find(_OPENING), lowered.find(_CLOSING)
    return lowered[-UNTAGGED_CHARACTERS:] if min(start, end) < 0 else lowered[start + len(_OPENING) : end].strip()


def read_templates(prompt: StepPrompt, key: str) -> tuple[str, str]:
    """The templates of step 1 and of a later one, from a file that is parsed and not executed."""
    path = files.verified(Path(prompt.path), prompt.sha256, key)
    texts: dict[str, str] = {}
    try:
        lines = ast.parse(path.read_bytes()).body
    except SyntaxError as error:
        raise UserError(f"{path}: not a Python file ({brief(error)}); correct `{key}`.") from None
    for line in lines:
        match line:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                texts[name] = text
    if missing := {prompt.first, prompt.later} - texts.keys():
        raise UserError(f"{path}: no text is assigned to `{missing.pop()}`; correct `{key}`.")
    return texts[prompt.first], texts[prompt.later]


class StepPromptEnv:
    """A shop in which each observation but the last is the whole next message. Implements `coevolve.envs.base.Env`."""

    def __init__(self, env: WebShopTaskEnv, prompt: StepPrompt, templates: tuple[str, str]) -> None:
        self.identity, self.step_limit, self.close = env.identity, env.step_limit, env.close
        self.parse = tagged_action
        self._env, self._prompt, self._templates = env, prompt, templates
        self._task, self._seen, self._past = "", "", list[str]()

    def start(self, task: Task) -> str:
        """The message of step 1."""
        start, self._past = self._env.start(task), []
        self._task = start.split(SEPARATOR)[2]
        return self._message(start)

    def step(self, action: str | None) -> StepResult:
        """Apply `action`; a text that is no action has no effect."""
        result = self._env.step(action)
        if result.done:
            return result
        number = len(self._past) + 1
        self._past.append(f"[Observation {number}: '{self._seen}', Action {number}: '{action}']")
        message = self._message(result.observation.removeprefix(observation_text("")))
        return dataclasses.replace(result, observation=message)

    def _message(self, page: str) -> str:
        """The message with a page, whose texts after the task are quoted, and with its actions."""
        texts, shown, past = page.split(SEPARATOR), self._env.session.page, self._past[-self._prompt.history :]
        after = texts[texts.index(self._task) + 1 :] if self._task in texts else None
        self._seen = page if after is None else SEPARATOR.join(f"'{text}'" for text in after)
        actions = ["search[<your query>]"] * (shown.kind == "start") + [f"click[{text}]" for text in shown.clickables]
        gaps = {
            "task_description": self._task,
            "current_observation": self._seen,
            "available_actions": "\n".join(f"'{action}'," for action in actions),
        }
        first, later = self._templates
        if past:
            counts = {"step_count": len(self._past), "history_length": len(past), "current_step": len(self._past) + 1}
            message = later.format(**gaps, **counts, action_history="\n".join(past))
            if len(message) <= self._prompt.longest:
                return message
        return first.format(**gaps)
