"""MariaDB's answers in MySQL 8's words, where the two say the same thing: names of clauses, types of columns.

What is left differs in substance (row order, checks of GROUP BY, syntax), so that results on MariaDB stay apart.
"""

from __future__ import annotations

import re
from typing import Any

Rows = list[tuple[Any, ...]]

#: MySQL's names for the places where a column was not found or is ambiguous.
_CLAUSES = {
    "SELECT": "field list",
    "WHERE": "where clause",
    "ON": "on clause",
    "HAVING": "having clause",
    "GROUP BY": "group statement",
    "ORDER BY": "order clause",
    "IN/ALL/ANY": "IN/ALL/ANY subquery",
}
_PHRASES = {
    "MariaDB server": "MySQL server",
    "version of MariaDB": "version of MySQL",
    " (max_statement_time exceeded)": ", maximum statement execution time exceeded",
}
_CLAUSE = re.compile(rf"(?<= in )('?)({'|'.join(_CLAUSES)})\1(?=$| is ambiguous$)")
_WIDTH = re.compile(r"\b((?:tiny|small|medium|big)?int)\(\d+\)")
_COLUMNS = re.compile(r"\s*(?:desc|describe|explain|show\s+(?:full\s+)?(?:columns|fields))\b", re.IGNORECASE)


def error(message: str) -> str:
    """A server's message as MySQL words it."""
    renamed = _CLAUSE.sub(lambda found: f"{found[1]}{_CLAUSES[found[2]]}{found[1]}", message)
    for theirs, mysqls in _PHRASES.items():
        renamed = renamed.replace(theirs, mysqls)
    return renamed


def rows(statement: str, answer: Rows) -> Rows:
    """The rows of a statement that describes columns without display widths, which MySQL 8 dropped; others as is."""
    if not _COLUMNS.match(statement):
        return answer
    return [tuple(_WIDTH.sub(r"\1", cell) if isinstance(cell, str) else cell for cell in row) for row in answer]
