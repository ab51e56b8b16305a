"""A server that the user runs and names by its address."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import pymysql

from coevolve.errors import UserError

PASSWORD = "COEVOLVE_SQL_PASSWORD"
#: What an account may be granted and still change nothing.
HARMLESS = frozenset({"USAGE", "SELECT", "SHOW VIEW", "SHOW DATABASES"})


def arguments(address: str) -> dict[str, Any]:
    """How to connect to `user@host:port` or `user@/path/to/socket`; raises `UserError` for anything else."""
    user, _, place = address.rpartition("@")
    host, _, port = place.rpartition(":")
    account = {"user": user, "password": os.environ.get(PASSWORD, "")}
    if user and place.startswith("/"):
        return {**account, "unix_socket": place}
    if user and host and port.isdecimal():
        return {**account, "host": host, "port": int(port)}
    raise UserError(f"`server.address`: {address} is neither `user@host:port` nor `user@/path/to/socket`; correct it.")


def check(connection: pymysql.Connection[pymysql.cursors.Cursor], address: str, databases: Sequence[str]) -> None:
    """Raises `UserError` if the account may write, or the server lacks a database or tells names' cases apart."""
    with connection.cursor() as cursor:
        granted = _granted(_column(cursor, "SHOW GRANTS"))
        present = set(_column(cursor, "SHOW DATABASES"))
        (lower_case,) = _column(cursor, "SELECT @@lower_case_table_names")
    where = f"`server.address`: {address}"
    if not granted <= HARMLESS:
        excess = ", ".join(sorted(granted - HARMLESS))
        raise UserError(f"{where}: the account may change data ({excess}); grant it only SELECT and SHOW VIEW on *.*.")
    if lower_case == 0:
        raise UserError(
            f"{where}: the server tells `City` and `city` apart; initialise it with lower_case_table_names=1."
        )
    missing = sorted({name.lower() for name in databases} - {name.lower() for name in present})
    if missing:
        raise UserError(f"{where}: no database {', '.join(missing)}; load the dump there first.")


def _granted(grants: Sequence[str]) -> set[str]:
    """The privileges in the server's own `GRANT ... ON ... TO ...`; a role, which has no ON, stands for itself."""
    privileges: set[str] = set()
    for grant in grants:
        listed = re.split(r" ON | TO ", grant.removeprefix("GRANT "), maxsplit=1)[0]
        privileges.update(re.sub(r"\(.*?\)", "", listed).split(", "))
    return privileges


def _column(cursor: pymysql.cursors.Cursor, statement: str) -> list[Any]:
    cursor.execute(statement)
    return [row[0] for row in cursor.fetchall()]
