"""Classes of differences between a result and the one recorded in 2023; the first matching class applies."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coevolve.envs.intercode_sql.recorded_runs import ERROR_PREFIX

_BYTES_PREFIX = re.compile(r"""(?<![\w'"])b(?=['"])""")
_DEPENDS_ON_SERVER = re.compile(
    r"\b(?:version|user|current_user|connection_id|uuid|rand|now|sysdate|curdate|curtime|current_(?:date|time)\w*)\b",
    re.IGNORECASE,
)
_UNKNOWN_TABLE = re.compile(r"Table '.*' doesn't exist")
_UNKNOWN_COLUMN = re.compile(r"Unknown column '.*' in ")
_DESCRIBES = re.compile(r"\s*(?:show|desc|describe|explain)\b", re.IGNORECASE)
_LIMIT = re.compile(r"\blimit\b", re.IGNORECASE)


@dataclass(frozen=True)
class ResultPair:
    """A statement with its recorded and its current result, both as the agent sees them; `rows`: all current rows."""

    statement: str
    recorded: str
    current: str
    rows: tuple[str, ...] = ()


def without_bytes_prefix(text):
    """`text` with each `b'...'` as `'...'`: the connectors used in 2023 differ in which columns they decode."""
    return _BYTES_PREFIX.sub("", text)


def classify(pair):
    """Name of the first class in `CLASSES` that applies to a differing `pair`; "other" if none does."""
    normalised = ResultPair(
        pair.statement,
        without_bytes_prefix(pair.recorded),
        without_bytes_prefix(pair.current),
        tuple(map(without_bytes_prefix, pair.rows)),
    )
    return next((name for name, applies in CLASSES.items() if applies(normalised)), "other")


def _leftover(pair):
    """Upstream's server had a table or column that an earlier episode had created and the dump lacks."""
    if _UNKNOWN_TABLE.search(pair.current):
        return not _UNKNOWN_TABLE.search(pair.recorded)
    if _UNKNOWN_COLUMN.search(pair.current):
        return pair.recorded.startswith("[")
    return bool(_DESCRIBES.match(pair.statement)) and _rows(pair.recorded) > _rows(pair.current) > Counter()


def _order(pair):
    """The same rows in another order, possibly truncated to other rows."""
    return _both_rows(pair) and _rows(pair.recorded) <= Counter(row[1:-1] for row in pair.rows)


CLASSES: Mapping[str, Callable[[ResultPair], bool]] = {
    # The statement changed upstream's database or connection; the kit's sessions can only read.
    "refused": lambda pair: pair.recorded == "None",
    "leftover": _leftover,
    # An earlier episode had disabled upstream's check of GROUP BY.
    "settings": lambda pair: "sql_mode=only_full_group_by" in pair.current and pair.recorded.startswith("["),
    "surroundings": lambda pair: bool(_DEPENDS_ON_SERVER.search(pair.statement)) and _both_rows(pair),
    # Rows of `information_schema` in another order: MySQL samples its statistics at random when it starts.
    "catalogue": lambda pair: "information_schema" in pair.statement.lower() and _order(pair),
    "order": _order,
    "tie": lambda pair: bool(_LIMIT.search(pair.statement)) and _both_rows(pair),
    "wording": lambda pair: pair.recorded.startswith(ERROR_PREFIX) and pair.current.startswith(ERROR_PREFIX),
}
#: Classes caused by upstream's single writable connection, which all episodes shared.
SHARED_STATE = ("refused", "leftover", "settings")


def _both_rows(pair):
    return pair.recorded.startswith("[") and pair.current.startswith("[")


def _rows(text):
    """Rows in the text of a list of tuples, without parentheses; empty for another text."""
    return Counter(text[2:-2].split("), (")) if text.startswith("[(") else Counter()
