"""Task text to prompt messages, and a policy's text to an action."""

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from coevolve.records.episodes import Message, Trajectory
from coevolve.settings.protocol import ActionLabel
from coevolve.settings.section import Strict


class PromptConfig(Strict):
    """The prompt before a task. `examples`: the number of few-shot examples, expert episodes shown as earlier turns.

    `trained`: whether training data contain them too; upstream's do not (quirk 11).
    """

    examples: Annotated[int, Field(ge=0, le=1)]
    trained: bool


_MARKER = "Action:"
_LABEL = re.compile(rf"^[ \t]*(?={_MARKER})", re.MULTILINE)
_OBSERVATION = re.compile(r"^[ \t]*Observation:", re.MULTILINE)
_SURROGATES = re.compile("[\ud800-\udfff]")


def prompt_messages(text: str, *, instruction: str = "", example: Sequence[Message] = ()) -> tuple[Message, ...]:
    """The messages before the first action, with the task's `text` as the last one.

    Optional messages come before it: `instruction` (acknowledged with `OK`), then the few-shot `example`
    (:func:`demonstration`).
    """
    messages = [*example, Message(role="user", content=text)]
    if instruction:
        opening = [Message(role="user", content=instruction), Message(role="assistant", content="OK")]
        messages = opening + messages
    return tuple(messages)


def demonstration(episode: Trajectory) -> tuple[Message, ...]:
    """An episode as a few-shot example: its task, then actions and observations up to the last action."""
    return (episode.prompt[-1], *episode.completion)


def without_example(trajectory: Trajectory, example: Sequence[Message]) -> Trajectory:
    """The trajectory without the few-shot `example` before its task; unchanged if its prompt does not contain it."""
    prompt, start = trajectory.prompt, len(trajectory.prompt) - 1 - len(example)
    if start < 0 or prompt[start:-1] != tuple(example):
        return trajectory
    return trajectory.model_copy(update={"prompt": (*prompt[:start], prompt[-1])})


def write_action(action: str, thought: str = "") -> str:
    """The text of a turn with `action`, and with `thought` if given; the inverse of :func:`parse_action`."""
    return f"Thought: {thought}\n{_MARKER} {action}" if thought else f"{_MARKER} {action}"


def stated(text: str, rule: ActionLabel) -> str:
    """The part of a policy's text in which the first `Action:` counts (quirk 13): with `first` the text itself.

    With `last_line` the text from the last line that begins with `Action:`, after a thought in `<think>` tags and
    before an observation that the policy invents; empty without such a line, and if the thought does not end.
    """
    if rule == "first":
        return text
    spoken = _OBSERVATION.split(after_thought(text), maxsplit=1)[0]
    labels = [match.end() for match in _LABEL.finditer(spoken)]
    return spoken[labels[-1] :] if labels else ""


def after_thought(text: str) -> str:
    """The text after the last `</think>`; empty if a `<think>` is not closed."""
    _, closed, rest = text.rpartition("</think>")
    return rest if closed or "<think>" not in text else ""


def parse_action(text: str) -> str | None:
    """The rest of the line after the first `Action:` of `text`, stripped; None if there is none or it is empty."""
    _, marker, rest = text.partition(_MARKER)
    if not marker:
        return None
    return rest.split("\n", maxsplit=1)[0].strip() or None


def without_surrogates(text: str) -> str:
    """The text with U+FFFD for each lone surrogate, which JSON can hold and no file or tokenizer."""
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)
