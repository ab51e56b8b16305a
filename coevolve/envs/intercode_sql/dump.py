"""Parser of a mysqldump file: databases, tables, columns and rows, without a server."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Value = str | float | None

#: Column types; types of dates and times are in neither set.
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
_ESCAPE = re.compile(r"\\(.)|''", re.DOTALL)
_CONTROL_CHARACTERS = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "Z": "\x1a"}


@dataclass(frozen=True)
class DumpTable:
    """A table of a database: column types by column name, and rows in the dump's order.

    Table names are in lower case, as on a server with `lower_case_table_names=1`.
    """

    database: str
    name: str
    columns: dict[str, str]
    rows: tuple[tuple[Value, ...], ...]

    def values(self, column: str) -> list[Value]:
        """Values of a column, row by row; numbers if its type is numeric."""
        index = list(self.columns).index(column)
        return [row[index] for row in self.rows]


def databases(dump: Path) -> tuple[str, ...]:
    """Names of the databases, in the dump's order."""
    names = (match["database"] for match in _STATEMENT.finditer(dump.read_text(encoding="utf-8")))
    return tuple(name for name in names if name)


def tables(dump: Path) -> tuple[DumpTable, ...]:
    """All tables with rows, in the dump's order."""
    parsed: list[DumpTable] = []
    database, name, columns = "", "", {}
    for match in _STATEMENT.finditer(dump.read_text(encoding="utf-8")):
        if match["database"]:
            database = match["database"]
        elif match["table"]:
            name, columns = match["table"].lower(), dict(_COLUMN.findall(match["columns"]))
        else:
            rows = tuple(tuple(_fields(row, columns)) for row in _ROW.findall(match["rows"]))
            parsed.append(DumpTable(database, name, columns, rows))
    return tuple(parsed)


def _fields(row: str, columns: dict[str, str]) -> Iterator[Value]:
    for (quoted, bare), kind in zip(_FIELD.findall(row), columns.values(), strict=True):
        if bare == "NULL":
            yield None
        elif kind in NUMERIC:
            yield float(bare or quoted)
        else:
            yield (
                _ESCAPE.sub(lambda match: _CONTROL_CHARACTERS.get(match[1], match[1]) if match[1] else "'", quoted)
                or bare
            )
