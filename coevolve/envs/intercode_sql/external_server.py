"""Connection to a database server that the user runs, and the checks that it is suitable."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from typing import Any

import pymysql

from coevolve.errors import UserError

PASSWORD_VARIABLE = "COEVOLVE_SQL_PASSWORD"
MAX_PORT = 65535
#: Privileges that allow no change of data.
READ_PRIVILEGES = frozenset({"USAGE", "SELECT", "SHOW VIEW", "SHOW DATABASES"})


def connection_arguments(address: str) -> dict[str, Any]:
    """Arguments of `pymysql.connect` for `user@host:port` or `user@/path/to/socket`.

    The password is read from the environment variable `COEVOLVE_SQL_PASSWORD`. Raises `UserError` for another form.
    """
    user, _, location = address.rpartition("@")
    host, _, port = location.rpartition(":")
    # As bytes: PyMySQL would encode a text as Latin-1.
    account = {"user": user, "password": os.fsencode(os.environ.get(PASSWORD_VARIABLE, ""))}
    if user and location.startswith("/"):
        return {**account, "unix_socket": location}
    with contextlib.suppress(UnicodeError):  # an empty label of the host, or a long one
        if user and host.encode("idna") and port.isdecimal() and int(port) <= MAX_PORT:
            return {**account, "host": host, "port": int(port)}
    raise UserError(f"`server.address`: {address} is neither `user@host:port` nor `user@/path/to/socket`; correct it.")


def check_server(
    connection: pymysql.Connection[pymysql.cursors.Cursor], address: str, databases: Sequence[str]
) -> None:
    """Raise `UserError` if the account can write, a database is missing, or table names are case-sensitive."""
    with connection.cursor() as cursor:
        granted = _granted_privileges(_first_column(cursor, "SHOW GRANTS"))
        present = set(_first_column(cursor, "SHOW DATABASES"))
        (lower_case,) = _first_column(cursor, "SELECT @@lower_case_table_names")
    where = f"`server.address`: {address}"
    if not granted <= READ_PRIVILEGES:
        excess = ", ".join(sorted(granted - READ_PRIVILEGES))
        raise UserError(f"{where}: the account may change data ({excess}); grant it only SELECT and SHOW VIEW on *.*.")
    if lower_case == 0:
        raise UserError(
            f"{where}: table names are case-sensitive there; initialise the server with lower_case_table_names=1."
        )
    missing = sorted({name.lower() for name in databases} - {name.lower() for name in present})
    if missing:
        raise UserError(f"{where}: no database {', '.join(missing)}; load the dump there first.")


def _granted_privileges(grants: Sequence[str]) -> set[str]:
    """The privileges in `GRANT ... ON ... TO ...` statements; a granted role, which has no ON, counts as one."""
    lists = (re.split(r" ON | TO ", grant.removeprefix("GRANT "), maxsplit=1)[0] for grant in grants)
    return {privilege for listed in lists for privilege in re.sub(r"\(.*?\)", "", listed).split(", ")}


def _first_column(cursor: pymysql.cursors.Cursor, statement: str) -> list[Any]:
    cursor.execute(statement)
    return [row[0] for row in cursor.fetchall()]
