"""The part of a suite that a job may read, and its digest."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_jsonable_python

from coevolve.config.suite import Suite, quirks
from coevolve.methods.recipes import Recipe

#: Values that replace the fields which no job reads, so that editing such a field reruns nothing.
_BLANK: dict[str, Any] = {"label": "", "source": "", "iterations": None, "settings": {}, "expected": None}


def restrict(suite: Suite, keys: Iterable[str], entries: Mapping[str, str]) -> Suite:
    """The part of a suite that one job may read: the given `keys`, and of a section in `entries` only that entry.

    Reading anything else raises AttributeError or KeyError, so a stage cannot depend on a key outside its digest.
    Fields that only readers see (labels, sources) and fields that only the plan reads (a recipe's iterations and
    settings, the expected numbers) are blank.
    """
    narrowed: dict[str, Any] = {key: getattr(suite, key) for key in keys}
    for key, name in entries.items():
        if key in narrowed:
            narrowed[key] = {name: _blanked(narrowed[key][name])}
    if "protocols" in narrowed:
        narrowed["protocols"] = {suite.protocol: quirks(suite)}
    return _only(narrowed)


def _only(sections: Mapping[str, Any]) -> Suite:
    """A suite with these sections alone."""
    every: dict[str, Any] = dict.fromkeys(Suite.model_fields)
    part = Suite.model_construct(**every)
    for content in (vars(part), part.model_fields_set):  # in place of all other fields
        content.clear()
        content.update(sections)
    return part


def _blanked(section: BaseModel) -> BaseModel:
    """A section without the fields that no job reads, also those of a recipe's agents."""
    fields = type(section).model_fields
    blank = {field: empty for field, empty in _BLANK.items() if field in fields}
    if isinstance(section, Recipe):
        blank["agents"] = {name: _blanked(agent) for name, agent in section.agents.items()}
    return section.model_copy(update=blank)


def as_dict(suite: Suite) -> dict[str, Any]:
    """A whole or restricted suite as JSON data."""
    return dict(sorted(suite.model_dump(mode="json", include=suite.model_fields_set).items()))


def whole(value: Any) -> Any:
    """A suite or a section as JSON data, with the keys that no digest has, such as a number of processes."""
    if isinstance(value, BaseModel):
        names = value.model_fields_set if isinstance(value, Suite) else type(value).model_fields
        return {name: whole(getattr(value, name)) for name in sorted(names)}
    if isinstance(value, Mapping):
        return {str(key): whole(each) for key, each in value.items()}
    return [whole(each) for each in value] if isinstance(value, list | tuple) else to_jsonable_python(value)


def part_of(settings: Mapping[str, Any]) -> Suite:
    """The restricted suite whose `as_dict` or `whole` the settings are; raises `ValidationError`."""
    kinds: dict[str, Any] = {key: Suite.model_fields[key].annotation for key in settings}
    sections = {key: TypeAdapter(kinds[key]).validate_python(value) for key, value in settings.items()}
    return _only(sections)


def digest(value: Any) -> str:
    """First 16 hex digits of the sha256 over JSON data with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
