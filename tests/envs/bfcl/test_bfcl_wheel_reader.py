"""Messages in BFCL's native format, read by the kit and by the wheel's reader: equal, but for listed differences."""

import ast
import itertools
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from coevolve.envs.bfcl import calls

CD = [("cd", {"folder": "x"})]
#: Text between the tags, and the calls that the kit reads in it.
BODIES = {
    "plain": ('{"name": "ls", "arguments": {"a": true}}', [("ls", {"a": True})]),
    "empty": ('{"name": "pwd", "arguments": {}}', [("pwd", {})]),
    "nested": (
        '{"name": "post", "arguments": {"tags": null, "deep": ["a", {"b": [1, 2.5, null]}, {"y": false}]}}',
        [("post", {"tags": None, "deep": ["a", {"b": [1, 2.5, None]}, {"y": False}]})],
    ),
    "unicode": (
        '{"name": "echo", "arguments": {"content": "naïve 東京 \\u2028 \\"quoted\\" \\n"}}',
        [("echo", {"content": 'naïve 東京 \u2028 "quoted" \n'})],
    ),
    "tag in a value": (
        '{"name": "echo", "arguments": {"content": "a </tool_call> b <tool_call> c"}}',
        [("echo", {"content": "a </tool_call> b <tool_call> c"})],
    ),
    "broken": ('{"name": "ls", "arguments": {"a": tru', []),
    "no name": ('{"arguments": {"a": 1}}', []),
    "extra key": ('{"name": "cd", "arguments": {"folder": "x"}, "id": 7}', CD),
    "arguments as text": ('{"name": "cd", "arguments": "{\\"folder\\": \\"x\\"}"}', CD),
    "parameters": ('{"name": "cd", "parameters": {"folder": "x"}}', CD),
    "dotted": ('{"name": "fs.cd", "arguments": {"folder": "x"}}', []),
    "list": ('[{"name": "cd", "arguments": {"folder": "x"}}]', []),
}
LAYOUTS = {
    "alone": "<tool_call>\n{0}\n</tool_call>",
    "twice": "<tool_call>\n{0}\n</tool_call>\n<tool_call>\n{0}\n</tool_call>",
    "beside another": '<tool_call>\n{0}\n</tool_call>\n<tool_call>\n{{"name": "pwd", "arguments": {{}}}}\n</tool_call>',
    "after a thought": "<think>\n<tool_call>\n{0}\n</tool_call>\n</think>\n\n<tool_call>\n{0}\n</tool_call>",
    "in a thought": "<think>\n<tool_call>\n{0}\n</tool_call>\n</think>\n\nNothing to do.",
    "in an open thought": "<think>\n<tool_call>\n{0}\n</tool_call>",
    "on one line": "<tool_call>{0}</tool_call>",
    "not closed": "<tool_call>\n{0}\n",
}
#: What the wheel and the kit do with the messages that they read otherwise.
INTENDED = {
    "arguments as text": ("refuses the message", "reads the text's JSON"),
    "parameters": ("refuses the message", "reads `parameters` as `arguments`"),
    "no name": ("refuses the message", "leaves this call out"),
    "list": ("refuses the message", "leaves this call out"),
    "dotted": ("executes the name", "leaves this call out: no tool has a dotted name"),
    "in an open thought": ("executes what the thought drafts", "no call"),
    "on one line": ("no call: it wants line breaks inside the tags", "reads it"),
}
CLOSED = ("alone", "twice", "beside another", "after a thought")
#: The messages that are read otherwise, each for a reason above.
DIFFERENT = {
    *itertools.product(
        ["plain", "empty", "nested", "unicode", "tag in a value", "extra key"], ["in an open thought", "on one line"]
    ),
    *itertools.product(["arguments as text", "parameters"], [*CLOSED, "on one line"]),
    *itertools.product(["dotted"], [*CLOSED, "in an open thought"]),
    *itertools.product(["no name", "list"], ["beside another"]),
}


def wheel_function(file, name):
    """A function of the wheel's source: importing its module needs packages that the wheel's table of models wants."""
    path = Path(find_spec("bfcl_eval").origin).parent / "model_handler" / file
    tree = ast.parse(path.read_text())
    (node,) = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name)
    node.decorator_list = []
    names = {"re": re, "json": __import__("json")}
    exec(compile(ast.Module([node], []), str(path), "exec"), names)
    return names[name]


def by_wheel(text):
    """(name, arguments) of the calls that the wheel would execute after a message; none if it refuses it."""
    items = wheel_function("local_inference/qwen_fc.py", "_extract_tool_calls")(text.split("</think>")[-1].lstrip("\n"))
    if any(type(item) is not dict for item in items):
        return []
    try:
        return [(item["name"], dict(item["arguments"].items())) for item in items]
    except (KeyError, AttributeError):
        return []


def by_kit(text):
    parsed = map(calls.parse_call, calls.tool_calls(text))
    return [(call.name, call.kwargs) for call in parsed]


@pytest.mark.parametrize(("body", "layout"), [*itertools.product(BODIES, LAYOUTS)])
def test_the_kit_reads_what_the_wheel_reads(body, layout):
    written, read = BODIES[body]
    text = LAYOUTS[layout].format(written)
    none, other = ("in a thought", "in an open thought", "not closed"), [("pwd", {})] * (layout == "beside another")
    assert by_kit(text) == ([] if layout in none else read * (1 + (layout == "twice")) + other)
    assert (by_kit(text) != by_wheel(text)) == ((body, layout) in DIFFERENT)


def test_each_difference_has_a_reason():
    assert all(set(pair) & set(INTENDED) for pair in DIFFERENT)
    assert all(any(name in pair for pair in DIFFERENT) for name in INTENDED)


def test_a_call_has_at_most_32_arguments():
    of = {number: f"f({', '.join(f'a{n}={n}' for n in range(number))})" for number in (32, 33)}
    assert len(calls.parse_call(of[32]).kwargs) == 32
    with pytest.raises(calls.CallError, match="at most 32 arguments"):
        calls.parse_call(of[33])
