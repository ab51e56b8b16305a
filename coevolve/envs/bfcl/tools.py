"""The tools of a scenario as text for the prompt."""

import json
from collections.abc import Iterable
from typing import Any, Literal

from coevolve.envs.bfcl.scenarios import Scenario

Style = Literal["names", "compact", "json", "hermes"]
#: Types of BFCL's documents under the names of JSON Schema.
_TYPES = {"dict": "object", "float": "number"}


def tool_lines(scenario: Scenario, names: Iterable[str], style: Style) -> str:
    """One line for each named tool: its signature (`compact`), or its document (`json`); or a line of all `names`.

    `hermes`: the block of function definitions that chat templates of the Hermes format write.
    """
    if style == "names":
        return " ".join(names)
    documents = scenario.documents
    chosen = [documents[name] for name in names]
    if style == "hermes":
        return "\n".join(["<tools>", *(json.dumps(function_definition(document)) for document in chosen), "</tools>"])
    return "\n".join(json.dumps(document) if style == "json" else _signature(document) for document in chosen)


def function_definition(document: dict[str, Any]) -> dict[str, Any]:
    """A tool's document as a function definition, with the parameters as JSON Schema."""
    names = ("name", "description", "parameters")
    return {"type": "function", "function": {name: _schema(document[name]) for name in names}}


def _schema(value: Any) -> Any:
    """A part of a document with the types of JSON Schema."""
    if isinstance(value, list):
        return [_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    renamed = {"type": _TYPES.get(kind, kind)} if isinstance(kind, str) else {}
    return {key: _schema(item) for key, item in value.items()} | renamed


def parameters(scenario: Scenario, name: str) -> list[str]:
    """The names of a tool's parameters, in order; none for an unknown tool."""
    document = scenario.documents.get(name)
    return [*document["parameters"]["properties"]] if document else []


def _signature(document: dict[str, Any]) -> str:
    """Such as `find(path: string = '.', name: string = None)`."""
    parameters = document["parameters"]
    required = set(parameters["required"])
    listed = (
        f"{name}: {field['type']}" + ("" if name in required else f" = {field.get('default')!r}")
        for name, field in parameters["properties"].items()
    )
    return f"{document['name']}({', '.join(listed)})"
