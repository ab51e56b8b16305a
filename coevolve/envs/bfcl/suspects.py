"""Tasks whose gold calls cannot be found from the conversation, with the reason."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from coevolve.envs.bfcl import scenarios
from coevolve.envs.bfcl.calls import parse_call
from coevolve.envs.bfcl.simulators import Simulators

#: A string argument of at least so many words is free text.
FREE_TEXT_WORDS = 4


@functools.cache
def suspects() -> Mapping[str, str]:
    """The reason by task id, such as `bfcl/base/3`, in all categories."""
    reasons = {
        f"bfcl/{category}/{index}": _reason(scenario)
        for category in scenarios.CATEGORIES
        for index, scenario in enumerate(scenarios.scenarios(category))
    }
    return {task_id: reason for task_id, reason in reasons.items() if reason}


def _reason(scenario: scenarios.Scenario) -> str:
    """Empty if the task is not suspect."""
    simulators, seen, late = Simulators(scenario), "", set(scenario.late_tools)
    for number, turn in enumerate(scenario.turns):
        seen += turn.message + "\n"
        late -= set(turn.new_tools)
        for text in turn.gold:
            call = parse_call(text)
            if call.name in late:
                return f"turn {number}: the gold calls `{call.name}` before it is offered"
            for literal in _strings([*call.args, *call.kwargs.values()]):
                if len(literal.split()) >= FREE_TEXT_WORDS and _plain(literal) not in _plain(seen):
                    return f"turn {number}: the free text of `{call.name}` is in no message and no output"
            seen += simulators.execute(text) + "\n"
    return ""


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        yield from _strings(list(value.values()))


def _plain(text: str) -> str:
    """Lower-case letters and digits, for a comparison without punctuation and quotes."""
    return "".join(character for character in text.lower() if character.isalnum())
