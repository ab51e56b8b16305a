"""Why an answer differs from the one recorded in 2023: named classes, the first that fits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

#: What the text of an error opens with; the text of anything else is a list of rows, or `None`.
ERROR = "Error executing query: "

_BYTES = re.compile(r"""(?<![\w'"])b(?=['"])""")
_DECIMALS = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")
_SURROUNDINGS = re.compile(
    r"\b(?:version|user|current_user|connection_id|uuid|rand|now|sysdate|curdate|curtime|current_(?:date|time)\w*)\b",
    re.IGNORECASE,
)
_NO_TABLE = re.compile(r"Table '.*' doesn't exist")
_NO_COLUMN = re.compile(r"Unknown column '.*' in ")
_DESCRIPTION = re.compile(r"\s*(?:show|desc|describe|explain)\b", re.IGNORECASE)
_LIMIT = re.compile(r"\blimit\b", re.IGNORECASE)


@dataclass(frozen=True)
class Pair:
    """A statement, the text recorded for it and the text seen now, both as shown; `rows` are all rows of now."""

    statement: str
    recorded: str
    seen: str
    rows: tuple[str, ...] = ()


def normal(text: str) -> str:
    """`text` with each `b'...'` as `'...'`: the connectors of 2023 differed in which columns they decoded."""
    return _BYTES.sub("", text)


def classify(pair: Pair) -> str:
    """Name of the first class in `CLASSES` that a differing `pair` belongs to; `other` for none."""
    plain = Pair(pair.statement, normal(pair.recorded), normal(pair.seen), tuple(map(normal, pair.rows)))
    return next((name for name, fits in CLASSES.items() if fits(plain)), "other")


def _refused(pair: Pair) -> bool:
    """It changed upstream's database or connection; here a session may change nothing that outlives it."""
    return pair.recorded == "None"


def _leftover(pair: Pair) -> bool:
    """Upstream's server had a table or column that is not in the dump: earlier episodes had created it."""
    if _NO_TABLE.search(pair.seen):
        return not _NO_TABLE.search(pair.recorded)
    if _NO_COLUMN.search(pair.seen):
        return pair.recorded.startswith("[")
    return bool(_DESCRIPTION.match(pair.statement)) and _rows(pair.recorded) > _rows(pair.seen) > Counter()


def _settings(pair: Pair) -> bool:
    """An earlier episode had switched off upstream's check of GROUP BY."""
    return "sql_mode=only_full_group_by" in pair.seen and pair.recorded.startswith("[")


def _order(pair: Pair) -> bool:
    """The same rows in another order, perhaps with others of them in view."""
    return _both_rows(pair) and _rows(pair.recorded) <= Counter(row[1:-1] for row in pair.rows)


def _catalogue(pair: Pair) -> bool:
    """The server's own tables in another order: MySQL samples their statistics at random whenever it starts."""
    return "information_schema" in pair.statement.lower() and _order(pair)


def _digits(pair: Pair) -> bool:
    """Equal once decimal fractions have six significant digits."""
    return _rounded(pair.recorded) == _rounded(pair.seen)


CLASSES: Mapping[str, Callable[[Pair], bool]] = {
    "refused": _refused,
    "leftover": _leftover,
    "settings": _settings,
    "time-out": lambda pair: "maximum statement execution time" in pair.seen,
    "surroundings": lambda pair: bool(_SURROUNDINGS.search(pair.statement)) and _both_rows(pair),
    "catalogue": _catalogue,
    "order": _order,
    "digits": _digits,
    "description": lambda pair: bool(_DESCRIPTION.match(pair.statement)) and _both_rows(pair),
    "tie": lambda pair: bool(_LIMIT.search(pair.statement)) and _both_rows(pair),
    "wording": lambda pair: pair.recorded.startswith(ERROR) and pair.seen.startswith(ERROR),
    "verdict": lambda pair: pair.recorded.startswith(ERROR) != pair.seen.startswith(ERROR),
}
#: Classes that exist because upstream's episodes shared one writable connection.
SHARED_STATE = ("refused", "leftover", "settings")


def _both_rows(pair: Pair) -> bool:
    return pair.recorded.startswith("[") and pair.seen.startswith("[")


def _rows(text: str) -> Counter[str]:
    """The rows in the text of a list of tuples, without their parentheses; nothing in any other text."""
    return Counter(text[2:-2].split("), (")) if text.startswith("[(") else Counter()


def _rounded(text: str) -> str:
    return _DECIMALS.sub(lambda found: f"{float(found[0]):.6g}", text)
