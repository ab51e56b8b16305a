"""The scenarios of BFCL v3 multi-turn, read from the installed wheel."""

import functools
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

from coevolve.envs.bfcl.config import Category
from coevolve.errors import UserError

DISTRIBUTION = "bfcl-eval"
VERSION = "2026.3.23"
CATEGORIES: tuple[Category, ...] = get_args(Category)
#: Numbers of scenarios: each category has the scenarios 0 to 199, in a variant of its own.
SCENARIOS = 200


@dataclass(frozen=True)
class UserTurn:
    """A message of the user, the gold calls that answer it, and the tools that are offered from this turn on."""

    message: str
    gold: tuple[str, ...]
    new_tools: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scenario:
    """An episode's user turns, and the state and classes of its simulated APIs."""

    name: str
    turns: tuple[UserTurn, ...]
    classes: tuple[str, ...]
    state: Mapping[str, Any]
    long_context: bool

    @property
    def late_tools(self) -> frozenset[str]:
        """The tools that are not offered at the start."""
        return frozenset(name for turn in self.turns for name in turn.new_tools)

    @property
    def documents(self) -> dict[str, dict[str, Any]]:
        """The documents of all tools, by name; no two classes of a scenario have a tool of the same name."""
        return {name: document for api in self.classes for name, document in tool_documents(api).items()}


def scenario(category: str, index: int) -> Scenario:
    """The variant of a scenario in a category; raises `UserError` for an unknown one."""
    if category not in CATEGORIES or not 0 <= index < SCENARIOS:
        raise UserError(f"bfcl: no scenario `{category}/{index}`; categories are {', '.join(CATEGORIES)}, 0 to 199.")
    return scenarios(category)[index]


@functools.cache
def scenarios(category: str) -> tuple[Scenario, ...]:
    """All 200 scenarios of a category."""
    entries = _lines(f"BFCL_v4_multi_turn_{category}.json")
    gold_lines = _lines(f"possible_answer/BFCL_v4_multi_turn_{category}.json")
    return tuple(_scenario(entry, gold["ground_truth"]) for entry, gold in zip(entries, gold_lines, strict=True))


@functools.cache
def tool_documents(api: str) -> Mapping[str, dict[str, Any]]:
    """The documents of a class's tools, by tool name, in the wheel's order."""
    from bfcl_eval.constants.executable_backend_config import MULTI_TURN_FUNC_DOC_FILE_MAPPING

    documents = _lines(f"multi_turn_func_doc/{MULTI_TURN_FUNC_DOC_FILE_MAPPING[api]}")
    return {document["name"]: document for document in documents}


@functools.cache
def wheel_folder() -> Path:
    """The folder of the installed wheel's package; raises `UserError` if it is absent or of another version."""
    package = importlib.util.find_spec("bfcl_eval")
    if package is None or not package.submodule_search_locations:
        raise UserError(f"{DISTRIBUTION} {VERSION} is not installed; run `make -B setup`.")
    if (installed := metadata.version(DISTRIBUTION)) != VERSION:
        raise UserError(f"{DISTRIBUTION} {installed} is installed, but {VERSION} is required; run `make -B setup`.")
    return Path(package.submodule_search_locations[0])


def _scenario(entry: dict[str, Any], gold: list[list[str]]) -> Scenario:
    late = entry.get("missed_function", {})
    turns = (
        UserTurn("\n".join(message["content"] for message in messages), tuple(calls), tuple(late.get(str(number), ())))
        for number, (messages, calls) in enumerate(zip(entry["question"], gold, strict=True))
    )
    return Scenario(
        name=entry["id"],
        turns=tuple(turns),
        classes=tuple(entry["involved_classes"]),
        state=entry["initial_config"],
        long_context="long_context" in entry["id"],
    )


def _lines(name: str) -> list[dict[str, Any]]:
    text = (wheel_folder() / "data" / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
