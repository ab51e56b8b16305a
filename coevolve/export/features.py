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
    none: Feature = {}
    columns = reduce(_merged, map(_feature, rows), none)
    assert isinstance(columns, dict)
    return [_field(name, feature) for name, feature in columns.items()]


def _feature(value: Any) -> Feature:
    if isinstance(value, Mapping):
        return {name: _feature(of_field) for name, of_field in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        unknown: Feature = "null"
        return [reduce(_merged, map(_feature, value), unknown)]
    return _NAMES[type(value)]


def _merged(left: Feature, right: Feature) -> Feature:
    """The type that holds the values of both."""
    if left == right or right == "null":
        return left
    if left == "null":
        return right
    if left in _NUMBERS and right in _NUMBERS:
        return "float64"
    if isinstance(left, list) and isinstance(right, list):
        return [_merged(left[0], right[0])]
    if isinstance(left, dict) and isinstance(right, dict):
        return {name: _merged(left.get(name, "null"), right.get(name, "null")) for name in left | right}
    raise TypeError(f"one column has values of the types {left} and {right}")


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
