"""The simulated APIs of one episode."""

import contextlib
import copy
import decimal
import importlib
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import mpmath

from coevolve.chat.prompts import without_surrogates
from coevolve.envs.bfcl.calls import Call, CallError, parse_call
from coevolve.envs.bfcl.scenarios import Scenario, tool_documents, wheel_folder

#: Tools that compute numbers of this argument's size: its position, its name and its largest absolute value.
BOUNDED = {
    "power": (1, "exponent", 1000),
    "logarithm": (2, "precision", 1000),
    "square_root": (1, "precision", 1000),
    "round_number": (1, "decimal_places", 1000),
}
#: Tools after which a walk of the folders can be longer. A copied folder shares the folders in it, so two calls double
#: the walk (`find`, `du`), and it has no end once a folder contains itself.
GROWING = ("cd", "cp", "mkdir", "mv", "touch")
#: The characters of all paths below a folder, together; the scenarios and their gold calls have up to 4,799.
MAX_PATH_CHARACTERS = 100_000
#: Some tools write to globals of their module for the time of a call.
_LOCK = threading.Lock()


class Simulators:
    """New instances of a scenario's classes. Upstream keeps them in module globals, where a next episode finds them."""

    def __init__(self, scenario: Scenario) -> None:
        wheel_folder()
        with _LOCK:
            self.instances: Mapping[str, Any] = {name: _instance(name, scenario) for name in scenario.classes}
        self._owners = {tool: name for name in scenario.classes for tool in tool_documents(name)}

    def execute(self, text: str) -> str:
        """The result of the call in `text` as upstream writes it; an error is a text too, and nothing is raised."""
        try:
            return self._run(parse_call(text))
        except CallError as error:
            return f"Error during execution: {error}"

    def _run(self, call: Call) -> str:
        if call.name not in self._owners:
            raise CallError(f"no tool `{call.name}`")
        _check_bound(call)
        instance = self.instances[self._owners[call.name]]
        bounded = _bounded_folders(instance) if call.name in GROWING else contextlib.nullcontext()
        with _LOCK, mpmath.workprec(mpmath.mp.prec), decimal.localcontext():
            try:
                with bounded:
                    result = getattr(instance, call.name)(*call.args, **call.kwargs)
                return without_surrogates(_written(result))
            except Exception as error:  # noqa: BLE001 - the simulators raise whatever wrong arguments lead to
                raise CallError(without_surrogates(str(error))) from None


def _written(result: Any) -> str:
    if isinstance(result, dict):
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            return json.dumps(result)
    return str(result)


def _instance(name: str, scenario: Scenario) -> Any:
    """A copy, because the long variants of scenarios refer to globals of their module."""
    from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING, STATELESS_CLASSES

    instance = getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[name]), name)()
    if name in STATELESS_CLASSES:
        return instance
    state = copy.deepcopy(scenario.state.get(name, {}))
    instance._load_scenario(state, long_context=scenario.long_context)
    return copy.deepcopy(instance) if scenario.long_context else instance


def _check_bound(call: Call) -> None:
    if call.name in BOUNDED:
        position, name, limit = BOUNDED[call.name]
        size = _number(call.args[position] if len(call.args) > position else call.kwargs.get(name, 0))
        if size is not None and not abs(size) <= limit:
            raise CallError(f"`{name}` must be from {-limit} to {limit}")


@contextlib.contextmanager
def _bounded_folders(files: Any) -> Iterator[None]:
    """Undoes a call after which the paths are longer than `MAX_PATH_CHARACTERS`, and raises `CallError`."""
    current = files._current_dir
    changeable = [current.contents, *(item.contents for item in current.contents.values() if hasattr(item, "contents"))]
    before = [dict(contents) for contents in changeable]
    yield
    if not (_is_bounded(files.root) and _is_bounded(files._current_dir)):
        files._current_dir = current
        for contents, items in zip(changeable, before, strict=True):
            contents.clear()
            contents.update(items)
        raise CallError(f"the paths below a folder would have more than {MAX_PATH_CHARACTERS} characters")


def _is_bounded(folder: Any) -> bool:
    """Whether the paths below `folder` are within the bound; a folder may be on many paths, or on its own."""
    pending, characters = [(folder, 0)], 0
    while pending and characters <= MAX_PATH_CHARACTERS:
        folder, length = pending.pop()
        for name, item in folder.contents.items():
            below = length + 1 + len(str(name))  # the simulator takes tuples for names, too
            characters += below
            if hasattr(item, "contents"):
                pending.append((item, below))
    return characters <= MAX_PATH_CHARACTERS


def _number(value: Any) -> float | None:
    """The number that a tool makes of an argument; some convert texts."""
    if isinstance(value, str | bytes):
        try:
            return int(value)
        except ValueError:
            return None
    return value if isinstance(value, int | float) else None
