"""Tasks from explored calls; see `coevolve.envs.synthesis.TaskSynthesis`.

A synthetic task begins in the initial state of a scenario: `data` holds the scenario, the request and the gold calls,
and `turns`, the requests of its user turns, if each call has one. It is graded as any other task.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from coevolve.envs.base import Setup
from coevolve.envs.bfcl import calls, env, tasks, tools
from coevolve.envs.bfcl.observations import is_refused, output
from coevolve.envs.synthesis import TaskDraft
from coevolve.records.episodes import Task, Turn

#: Shares of draws: a favoured tool, an optional argument, a value from the state where the tool does not list values.
FAVOURED, OPTIONAL, FROM_STATE = 0.7, 0.3, 0.75
#: Words of new names, which get a number.
NEW_NAMES = ("draft", "notes", "backup", "report", "archive", "summary", "plan", "list", "copy", "log")
#: The longest text that is drawn from the state, in characters.
LONGEST = 40
_LISTED = re.compile(r"(?:\[Enum\]:|[Oo]ptions are:)\s*\[?([^\].]+)")
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


def open_task(start: Task, name: str, instruction: str) -> Task:
    """A user turn without gold calls."""
    return _task(start, name, TaskDraft(instruction, ()))


def goal_task(setup: Setup, start: Task, name: str, draft: TaskDraft) -> Task:
    """User turns whose gold calls are the reference solution."""
    by_rules = draft.solution and draft.instruction == _request(draft.solution)
    if setup.config.synthetic_turns == "one" or not by_rules:
        return _task(start, name, draft)
    return _task(start, name, draft, {"turns": json.dumps([_request([call]) for call in draft.solution])})


def propose(setup: Setup, task: Task, turns: Sequence[Turn], favoured: Sequence[str], rng: np.random.Generator) -> str:
    """A call of an offered tool; values come from its documentation, the scenario's state and the last outputs."""
    documents = tasks.scenario_of(task).documents
    near = [name for name in dict.fromkeys(pattern.partition("(")[0] for pattern in favoured) if name in documents]
    names = near if near and rng.random() < FAVOURED else list(documents)
    name = names[rng.integers(len(names))]
    parameters, values = documents[name]["parameters"], _Values(task, turns)
    drawn = (
        (key, _argument(key, field, values, rng))
        for key, field in parameters["properties"].items()
        if key in parameters["required"] or rng.random() < OPTIONAL
    )
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in drawn)})"


def write(setup: Setup, task: Task, action: str) -> str:
    """A message with the call, in the configured format."""
    return env.write_call(setup.config, tasks.scenario_of(task), action)


def executed(setup: Setup, turns: Sequence[Turn]) -> tuple[str, ...]:
    """The calls that did not end in an error, of the messages with a single call."""
    return tuple(
        turn.action
        for turn in turns
        if turn.action and "\n" not in turn.action and turn.action != env.END_TURN and not is_refused("", turn)
    )


def pattern(action: str) -> str:
    """The tool with the names of its arguments; the text itself if it is no call."""
    try:
        call = calls.parse_call(action)
    except calls.CallError:
        return action
    return f"{call.name}({', '.join([*('_' for _ in call.args), *sorted(call.kwargs)])})"


def normalised(setup: Setup, start: Task, action: str) -> str:
    """The tool with all arguments by name, sorted, in one notation; the text itself if it is no call."""
    try:
        call = calls.parse_call(action)
    except calls.CallError:
        return action
    names = tools.parameters(tasks.scenario_of(start), call.name)
    arguments = dict(zip(names, call.args, strict=False)) | call.kwargs
    return f"{call.name}({', '.join(f'{key}={_plain(value)!r}' for key, value in sorted(arguments.items()))})"


def _plain(value: Any) -> Any:
    """An argument with whole numbers as integers: a model writes 100 where exploration draws 100.0."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def describe(setup: Setup, start: Task, actions: Sequence[str]) -> TaskDraft | None:
    """A request that names each tool in words, with its values; None without a call."""
    distinct = tuple(dict.fromkeys(actions))
    return TaskDraft(_request(distinct), distinct) if distinct else None


def solution_texts(setup: Setup, task: Task) -> list[str]:
    """Of each user turn a message for each gold call, and the one that ends the turn."""
    scenario, end = tasks.scenario_of(task), env.write_end(setup.config, tasks.scenario_of(task))
    calls_of_turns = ([env.write_call(setup.config, scenario, call) for call in turn.gold] for turn in scenario.turns)
    return [text for messages in calls_of_turns for text in (*messages, end)]


def reference_solution(task: Task) -> list[str]:
    """The gold calls of all user turns."""
    return [call for turn in tasks.scenario_of(task).turns for call in turn.gold]


def _task(start: Task, name: str, draft: TaskDraft, turns: Mapping[str, str] = {}) -> Task:
    state = {key: start.data[key] for key in ("category", "index")}
    data = state | {"request": draft.instruction, "gold": json.dumps(draft.solution), **turns}
    return start.model_copy(update={"task_id": name, "data": data})


def _request(solution: Sequence[str]) -> str:
    """Such as `Please get watchlist, then place order with symbol 'NVDA'.`"""
    return f"Please {', then '.join(map(_in_words, solution))}."


def _in_words(action: str) -> str:
    """Such as `place order with order_type 'Buy', symbol 'NVDA'`."""
    call = calls.parse_call(action)
    words = " ".join(_WORD.findall(call.name)).lower()
    values = [*(repr(value) for value in call.args), *(f"{key} {value!r}" for key, value in call.kwargs.items())]
    return f"{words} with {', '.join(values)}" if values else words


class _Values:
    """The values of a scenario's state and of the outputs so far, by key; the names in a table have the key ""."""

    def __init__(self, task: Task, turns: Sequence[Turn]) -> None:
        self._by_key: defaultdict[str, list[Any]] = defaultdict(list)
        for state in tasks.scenario_of(task).state.values():
            self._add("", state)
        for turn in turns:
            self._add("", _json(output(turn.observation)))

    def of(self, kinds: type | tuple[type, ...], key: str | None = None) -> list[Any]:
        """The values of these types with this key, or with any, each once."""
        keys = sorted(self._by_key) if key is None else [key]
        return list(dict.fromkeys(value for name in keys for value in self._by_key[name] if isinstance(value, kinds)))

    def _add(self, key: str, value: Any) -> None:
        if isinstance(value, Mapping):
            if all(isinstance(below, Mapping) for below in value.values()):
                self._by_key[""] += map(str, value)
            for name, below in value.items():
                self._add(str(name), below)
        elif isinstance(value, list):
            for item in value:
                self._add(key, item)
        elif isinstance(value, int | float | str) and key != "type" and len(str(value)) <= LONGEST:
            self._by_key[key].append(value)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _argument(key: str, field: Mapping[str, Any], values: _Values, rng: np.random.Generator) -> Any:
    kind = field["type"]
    if kind == "array":
        item = {"description": field["description"], **field.get("items", {"type": "string"})}
        return list(dict.fromkeys(_argument(key, item, values, rng) for _ in range(1 + rng.integers(2))))
    if kind == "boolean":
        return bool(rng.integers(2))
    if kind in ("integer", "float"):
        return _number(key, kind, values, rng)
    return _text(key, str(field["description"]), values, rng) if kind == "string" else {}


def _number(key: str, kind: str, values: _Values, rng: np.random.Generator) -> int | float:
    listed = [value for value in values.of((int, float), key) if not isinstance(value, bool)]
    if listed and rng.random() < FROM_STATE:
        value = listed[rng.integers(len(listed))]
        return int(value) if kind == "integer" else float(value)
    return int(rng.integers(1, 10)) if kind == "integer" else float(rng.integers(1, 21)) * 5


def _text(key: str, description: str, values: _Values, rng: np.random.Generator) -> str:
    listed = list(_listed_values(description)) or values.of(str, key)
    if not listed and rng.random() < FROM_STATE:
        listed = values.of(str)
    if listed:
        return str(listed[rng.integers(len(listed))])
    return f"{NEW_NAMES[rng.integers(len(NEW_NAMES))]}{rng.integers(10, 100)}"


def _listed_values(description: str) -> Iterator[str]:
    """The values that a parameter's description lists."""
    for text in _LISTED.findall(description):
        yield from (value.strip(" \"'") for value in text.split(",") if value.strip(" \"'"))
