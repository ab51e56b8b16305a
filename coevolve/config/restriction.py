"""The part of a suite that a job may read, and its digest."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from coevolve.config.derived.protocol import quirks
from coevolve.config.sections import Recipe
from coevolve.config.suite import Suite

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
    part = suite.model_copy()  # `model_construct` would fill in the defaults of all other fields
    for content in (vars(part), part.model_fields_set):
        content.clear()
        content.update(narrowed)
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


def digest(value: Any) -> str:
    """First 16 hex digits of the sha256 over JSON data with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
