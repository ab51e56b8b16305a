"""Rewrites MariaDB's messages and column descriptions as MySQL 8 prints them, where both mean the same.

The remaining differences (row order, checks of GROUP BY, syntax) are real, so results on MariaDB are not comparable.
"""

from __future__ import annotations

import re
from typing import Any

Rows = list[tuple[Any, ...]]

#: MySQL's names of the clauses in which a column is unknown or ambiguous, by MariaDB's.
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
_DISPLAY_WIDTH = re.compile(r"\b((?:tiny|small|medium|big)?int)\(\d+\)")
_DESCRIBES_COLUMNS = re.compile(r"\s*(?:desc|describe|explain|show\s+(?:full\s+)?(?:columns|fields))\b", re.IGNORECASE)


def mysql_error_message(message: str) -> str:
    """MariaDB's error message in MySQL's wording."""
    message = _CLAUSE.sub(lambda match: f"{match[1]}{_CLAUSES[match[2]]}{match[1]}", message)
    for mariadb_phrase, mysql_phrase in _PHRASES.items():
        message = message.replace(mariadb_phrase, mysql_phrase)
    return message


def mysql_rows(statement: str, rows: Rows) -> Rows:
    """`rows`, without the display widths that MySQL 8 dropped if `statement` describes columns."""
    if not _DESCRIBES_COLUMNS.match(statement):
        return rows
    return [tuple(_DISPLAY_WIDTH.sub(r"\1", cell) if isinstance(cell, str) else cell for cell in row) for row in rows]
