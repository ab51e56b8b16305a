"""What a dump made by mysqldump holds, read without a server: databases, tables, columns and rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Value = str | float | None

#: Types of columns; those of dates and times are in neither.
TEXT = frozenset({"char", "varchar", "text"})
NUMERIC = frozenset({"int", "bigint", "smallint", "tinyint", "float", "double", "decimal"})
_STATEMENT = re.compile(
    r"^CREATE DATABASE [^`]*`(?P<database>\w+)`"
    r"|^CREATE TABLE `(?P<table>\w+)` \(\n(?P<columns>.*?)^\)"
    r"|^INSERT INTO `\w+` VALUES (?P<rows>.*?);$",
    re.MULTILINE | re.DOTALL,
)
_COLUMN = re.compile(r"^  `([^`]+)` (\w+)", re.MULTILINE)
_ROW = re.compile(r"\(((?:'(?:[^'\\]|\\.|'')*'|[^()'])*)\)", re.DOTALL)
_FIELD = re.compile(r"'((?:[^'\\]|\\.|'')*)'|([^,']+)", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)|''", re.DOTALL)
_CONTROL = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "Z": "\x1a"}


@dataclass(frozen=True)
class Table:
    """A table of a database: its columns with their types, and its rows in the order in which they were dumped.

    Names are the server's own under `lower_case_table_names=1`: those of tables are in lower case.
    """

    database: str
    name: str
    columns: dict[str, str]
    rows: tuple[tuple[Value, ...], ...]

    def values(self, column: str) -> list[Value]:
        """What stands in a column, row by row; numbers where its type is numeric."""
        index = list(self.columns).index(column)
        return [row[index] for row in self.rows]


def databases(dump: Path) -> tuple[str, ...]:
    """Names of the databases, in the dump's order."""
    found = (match["database"] for match in _STATEMENT.finditer(dump.read_text(encoding="utf-8")))
    return tuple(name for name in found if name)


def tables(dump: Path) -> tuple[Table, ...]:
    """All tables that hold rows, in the dump's order."""
    found: list[Table] = []
    database, name, columns = "", "", {}
    for match in _STATEMENT.finditer(dump.read_text(encoding="utf-8")):
        if match["database"]:
            database = match["database"]
        elif match["table"]:
            name, columns = match["table"].lower(), dict(_COLUMN.findall(match["columns"]))
        else:
            rows = tuple(tuple(_fields(row, columns)) for row in _ROW.findall(match["rows"]))
            found.append(Table(database, name, columns, rows))
    return tuple(found)


def _fields(row: str, columns: dict[str, str]) -> Iterator[Value]:
    for (quoted, bare), kind in zip(_FIELD.findall(row), columns.values(), strict=True):
        if bare == "NULL":
            yield None
        elif kind in NUMERIC:
            yield float(bare or quoted)
        else:
            yield _ESCAPED.sub(lambda match: _CONTROL.get(match[1], match[1]) if match[1] else "'", quoted) or bare
