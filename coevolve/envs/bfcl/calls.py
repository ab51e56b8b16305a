"""A call in a policy's text, parsed without evaluating it.

Upstream's executor passes the text to `eval`. Here it must be one call of a plain name with literal arguments.
"""

import ast
import json
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from coevolve.chat.prompts import after_thought

#: The longest gold call has 6,839 characters.
MAX_CHARACTERS = 16_384
MAX_ARGUMENTS = 32
MAX_INTEGER = 10**18
_OPENS, _CLOSES = re.compile(r"<tool_call>\s*"), re.compile(r"\s*</tool_call>")
_PLAIN = (str, float, bool, type(None))


class CallError(Exception):
    """The text is not a call that can be executed; the message is the observation."""


@dataclass(frozen=True)
class Call:
    """A tool's name and literal arguments."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def parse_call(text: str) -> Call:
    """The call in `text`; raises `CallError` for any other text, and for sizes beyond the limits of this module."""
    text = text.strip()
    if len(text) > MAX_CHARACTERS:
        raise CallError(f"the call has {len(text)} characters, the limit is {MAX_CHARACTERS}")
    node = _call_node(text)
    if not isinstance(node.func, ast.Name) or not text.startswith(node.func.id):
        raise CallError("the tool must be a plain ASCII name")  # the parser normalises unicode names
    if len(node.args) + len(node.keywords) > MAX_ARGUMENTS:
        raise CallError(f"a call has at most {MAX_ARGUMENTS} arguments")
    kwargs = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise CallError("`**` is not allowed")
        kwargs[keyword.arg] = _literal(keyword.value)
    return Call(node.func.id, tuple(_literal(argument) for argument in node.args), kwargs)


def tool_calls(text: str) -> list[str]:
    """The calls in the `<tool_call>` tags after a thought, each as a Python call; broken ones are left out."""
    text = after_thought(text)
    if len(text) > 4 * MAX_CHARACTERS:
        return []
    return [call for content in _json_calls(text) if (call := _python_call(content)) is not None]


def write_tool_call(call: Call, parameters: Iterable[str]) -> str:
    """A call as JSON in `<tool_call>` tags; `parameters` are the names of the tool's parameters, in order."""
    arguments = dict(zip(parameters, call.args, strict=False)) | call.kwargs
    return f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': arguments})}\n</tool_call>"


def _json_calls(text: str) -> Iterator[Any]:
    """The JSON values between tags; a tag inside a value is a part of it."""
    end = 0
    for tag in _OPENS.finditer(text):
        if tag.start() < end:
            continue
        try:
            content, end = json.JSONDecoder().raw_decode(text, tag.end())
        except (ValueError, RecursionError):
            continue
        if _CLOSES.match(text, end):
            yield content


def _python_call(content: Any) -> str | None:
    """A call's JSON as Python; its arguments may be a text of JSON, or called `parameters`."""
    try:
        name, arguments = content["name"], content.get("arguments", content.get("parameters"))
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        if name.isidentifier() and all(key.isidentifier() for key in arguments):
            return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return None


def _call_node(text: str) -> ast.Call:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        node = None
    if not isinstance(node, ast.Call):
        raise CallError("the text is not a call such as `tool(name='value')`")
    return node


def _literal(node: ast.expr) -> Any:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise CallError("arguments must be literals") from None
    _check_literal(value)
    return value


def _check_literal(value: Any) -> None:
    if isinstance(value, dict):
        children = [*value, *value.values()]
    elif isinstance(value, list | tuple):
        children = list(value)
    elif isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise CallError("an integer is larger than 10**18")
    elif isinstance(value, (*_PLAIN, int)):
        return
    else:
        raise CallError(f"arguments of type `{type(value).__name__}` are not allowed")
    for child in children:
        _check_literal(child)
