"""Task text to prompt messages, and a policy's text to an action."""

from __future__ import annotations

from coevolve.types import Message

_MARKER = "Action:"


def prompt_messages(text: str, *, system: str = "", instruction: str = "") -> tuple[Message, ...]:
    """The messages before the first action: the task's `text`, after an instruction acknowledged with `OK`, if any."""
    messages = [Message(role="user", content=text)]
    if instruction:
        opening = [Message(role="user", content=instruction), Message(role="assistant", content="OK")]
        messages = opening + messages
    if system:
        messages.insert(0, Message(role="system", content=system))
    return tuple(messages)


def write_action(action: str, thought: str = "") -> str:
    """What a policy says to do `action`; :func:`parse_action` reads it back."""
    return f"Thought: {thought}\n{_MARKER} {action}" if thought else f"{_MARKER} {action}"


def parse_action(text: str) -> str | None:
    """The rest of the line after the first `Action:` of `text`, stripped; None if there is none or it is empty."""
    _, marker, rest = text.partition(_MARKER)
    if not marker:
        return None
    return rest.split("\n", maxsplit=1)[0].strip() or None
