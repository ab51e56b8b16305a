"""Connection to a database server that the user runs, and the checks that it is suitable."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import pymysql

from coevolve.errors import UserError

PASSWORD_VARIABLE = "COEVOLVE_SQL_PASSWORD"
#: Why no password is sent.
INSECURE = (
    "`server.address`: the server asks for the password itself without TLS, so it is not sent; turn TLS on there, or "
    "connect to its socket (`user@/path/to/socket`)."
)
MAX_PORT = 65535
#: Privileges that allow no change of data.
READ_PRIVILEGES = frozenset({"SELECT", "SHOW VIEW"})
_GRANT = re.compile(r"GRANT (?P<privileges>.+) ON `(?P<database>[^`]*)`\..+ TO .+")


class PasswordGuard:
    """PyMySQL's handler of a `method` that sends the password itself: only on a local socket or over TLS."""

    def __init__(self, method: bytes, connection: Any) -> None:
        self.method, self.connection = method, connection

    def authenticate(self, packet: Any) -> Any:
        """The server's answer; raises `UserError` on another connection."""
        if not self.connection._secure:
            raise UserError(INSECURE)
        return self.connection._process_auth(self.method, packet)


#: Arguments of `pymysql.connect` that protect the password. The full exchange of MySQL's default method, without TLS,
#: encrypts it with any key that the server sends: with a key that is none it ends before that, as `INSECURE_ERRORS`.
PROTECTED: dict[str, Any] = {
    "auth_plugin_map": {
        method: partial(PasswordGuard, method) for method in (b"mysql_clear_password", b"dialog", b"sha256_password")
    },
    "server_public_key": b"none",
}
INSECURE_ERRORS = (RuntimeError, ValueError)


def connection_arguments(address: str) -> dict[str, Any]:
    """Arguments of `pymysql.connect` for `user@host:port` or `user@/path/to/socket`.

    The password is read from the environment variable `COEVOLVE_SQL_PASSWORD`. Raises `UserError` for another form.
    """
    user, _, location = address.rpartition("@")
    host, _, port = location.rpartition(":")
    # As bytes: PyMySQL would encode a text as Latin-1.
    account = {"user": user, "password": os.fsencode(os.environ.get(PASSWORD_VARIABLE, ""))}
    if user and location.startswith("/"):
        return {**account, **PROTECTED, "unix_socket": location}
    with contextlib.suppress(UnicodeError):  # an empty label of the host, or a long one
        if user and host.encode("idna") and port.isdecimal() and int(port) <= MAX_PORT:
            return {**account, **PROTECTED, "host": host, "port": int(port)}
    raise UserError(f"`server.address`: {address} is neither `user@host:port` nor `user@/path/to/socket`; correct it.")


def check_server(
    connection: pymysql.Connection[pymysql.cursors.Cursor], address: str, databases: Sequence[str]
) -> None:
    """Raise `UserError` unless the account may read `databases` and do nothing else, and table names have no case."""
    with connection.cursor() as cursor:
        grants = _first_column(cursor, "SHOW GRANTS")
        present = set(_first_column(cursor, "SHOW DATABASES"))
        (lower_case,) = _first_column(cursor, "SELECT @@lower_case_table_names")
    where, names = f"`server.address`: {address}", {name.lower() for name in databases}
    if excess := [grant for grant in grants if not _only_reads(grant, names)]:
        raise UserError(
            f"{where}: the account may do more than read the dump's databases ({excess[0]}); revoke that, "
            f"and for each of them `GRANT SELECT, SHOW VIEW ON {min(names)}.*`."
        )
    if lower_case == 0:
        raise UserError(
            f"{where}: table names are case-sensitive there; initialise the server with lower_case_table_names=1."
        )
    missing = sorted(names - {name.lower() for name in present})
    if missing:
        raise UserError(
            f"{where}: no database {', '.join(missing)}; load the dump there and grant the account `SELECT, SHOW VIEW`."
        )


def _only_reads(grant: str, databases: set[str]) -> bool:
    """Whether a line of `SHOW GRANTS` allows nothing, or only to read one of `databases` or a table of it."""
    if "WITH GRANT OPTION" in grant:
        return False
    if not (match := _GRANT.fullmatch(grant)):
        return grant.startswith("GRANT USAGE ON *.* ")
    privileges = re.sub(r" ?\(.*?\)", "", match["privileges"]).split(", ")
    return READ_PRIVILEGES.issuperset(privileges) and match["database"].replace("\\", "").lower() in databases


def _first_column(cursor: pymysql.cursors.Cursor, statement: str) -> list[Any]:
    cursor.execute(statement)
    return [row[0] for row in cursor.fetchall()]
