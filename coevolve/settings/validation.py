"""Validation of configurations: the first problem as a sentence, with the known keys for an unknown one."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from coevolve.errors import UserError, suggestion
from coevolve.settings.section import SENTENCE
from coevolve.settings.yaml_files import Section

M = TypeVar("M", bound=BaseModel)


def validated(kind: type[M], path: Path, raw: Section) -> M:
    """`raw` as a config of this kind; raises `UserError` that names the file or the command line, and the wrong key."""
    try:
        return kind.model_validate(raw.plain())
    except ValidationError as error:
        given = raw.origin(error.errors()[0]["loc"]).startswith("--set ")
        raise UserError(f"{'command line' if given else path}: {explain(error, kind, raw)}") from None


def explain(error: ValidationError, kind: type[BaseModel], raw: Any) -> str:
    """The first problem that validating `raw` met, as a sentence; for an unknown key with the nearest one, or all."""
    first = error.errors()[0]
    location = [part for part in first["loc"] if part != "[key]"]  # pydantic's mark of an error in the key itself
    key = ".".join(map(str, location)) or "(top level)"
    if first["type"] == "extra_forbidden":
        *parents, last = first["loc"]
        known = list(_siblings(kind, parents, raw))
        hint = suggestion(str(last), known) or (f"; known are {', '.join(known)}" if known else "")
        return ended(f"unknown key `{key}`{hint}")
    if first["type"] == "missing":
        *section, name = location[:-1] or [""]
        if isinstance(raw, Section) and section and raw.origin(location).startswith("--set "):
            siblings: Any = raw
            for part in section:
                siblings = siblings[part]
            if hint := suggestion(str(name), siblings.keys() - {name}):
                return ended(f"unknown key `{'.'.join(map(str, location[:-1]))}`{hint}")
        return f"key `{key}` is missing; add it."
    if first["type"] == SENTENCE:
        return ended(f"key `{key}`: {first['msg']}")
    if "[key]" in first["loc"] and first["type"] == "string_pattern_mismatch":
        others = "`_`, `.` and `-`" if "." in first["ctx"]["pattern"] else "`_`"
        return f"key `{key}`: it is part of a path; name it with letters, digits, {others}."
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return ended(message)
    origin = raw.origin(location) if isinstance(raw, Section) else ""
    source = f", set by {origin}" if origin else ""
    return f"key `{key}`: {message[0].lower()}{message[1:]} (got {repr(first['input'])[:300]}{source})."


def _siblings(kind: type[BaseModel], location: Sequence[str | int], raw: Any) -> Iterable[str]:
    """Names of the fields beside an unknown key at `location`."""
    section: Any = kind
    for part in location:
        fields = getattr(section, "model_fields", {})
        section = _section(fields[part].annotation if part in fields else section)
        raw = raw.get(part) if isinstance(raw, dict) else None
        section = section.variant(raw) if hasattr(section, "variant") else section
    return getattr(section, "model_fields", {})


def _section(annotation: Any) -> Any:
    """The config class inside an annotation such as `dict[str, X]` or `X | None`."""
    inner = [a for a in getattr(annotation, "__args__", ()) if _section(a) is not None]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return _section(inner[-1]) if inner else None


def ended(sentence: str) -> str:
    """The sentence with its full stop, if it has no other end."""
    return sentence if sentence.endswith((".", "?")) else f"{sentence}."
