"""The columns of JSON rows and their types, as the front matter of a card states them for `datasets`.

Without them `datasets` infers types from the first megabytes of a file, and refuses a later value in a column whose
values were all empty before.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

#: A type: its name in `datasets`, `null` where no value is known, a list's in a list, or a struct's by field.
Feature = str | list[Any] | dict[str, Any]
_NAMES = {bool: "bool", int: "int64", float: "float64", str: "string", type(None): "null"}
_NUMBERS = ("int64", "float64")


def features(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The `features` of a card's `dataset_info`, of all rows together; raises TypeError for values of two types."""
    columns = reduce(_merged, map(_feature, rows), {})
    assert isinstance(columns, dict)
    return [_field(name, feature) for name, feature in columns.items()]


def _feature(value: Any) -> Feature:
    if isinstance(value, Mapping):
        return {name: _feature(of_field) for name, of_field in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [reduce(_merged, map(_feature, value), "null")]
    return _NAMES[type(value)]


def _merged(one: Feature, other: Feature) -> Feature:
    """The type that holds the values of both."""
    if one == other or other == "null":
        return one
    if one == "null":
        return other
    if one in _NUMBERS and other in _NUMBERS:
        return "float64"
    if isinstance(one, list) and isinstance(other, list):
        return [_merged(one[0], other[0])]
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: _merged(one.get(name, "null"), other.get(name, "null")) for name in one | other}
    raise TypeError(f"one column has values of the types {one} and {other}")


def _field(name: str, feature: Feature) -> dict[str, Any]:
    return {"name": name, **_typed(feature)}


def _typed(feature: Feature) -> dict[str, Any]:
    """A type as the hub's YAML writes it."""
    if isinstance(feature, dict):
        return {"struct": [_field(name, of_field) for name, of_field in feature.items()]}
    if isinstance(feature, list):
        (inner,) = _typed(feature[0]).items()
        return {"list": {"list": inner[1]} if inner[0] == "list" else inner[1]}
    return {"dtype": feature}
