"""The data directory every server starts with: made once from the dump, kept in the cache, copied per server."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pymysql
from pymysql.constants import CLIENT

from coevolve.envs.base import EnvError
from coevolve.envs.intercode_sql import dump as dumps
from coevolve.envs.intercode_sql import settings
from coevolve.envs.intercode_sql.engine import Engine, cache
from coevolve.envs.intercode_sql.process import Directory, Process, closed, own
from coevolve.errors import UserError
from coevolve.storage import files

START_SECONDS = 60.0
#: Bytes a template may take while it is made; it ends with less than half of them.
ROOM = 250 << 20
#: A dump is sent as one packet; agents may send far less.
LOADING = "--max-allowed-packet=1G"

MARIADB_SYSTEM_TABLES = ("mysql_system_tables.sql", "mysql_system_tables_data.sql")


class Template:
    """The initialised data directory for a dump on an engine."""

    def __init__(self, engine: Engine, dump: Path) -> None:
        if not dump.exists():
            raise UserError(f"{dump}: no such file; run the stage that fetches it, or correct `dump.path`.")
        self._engine = engine
        self._dump = dump
        key = (
            files.sha256(dump),
            engine.identity(),
            *settings.fixed(engine.flavour),
            *settings.after_loading(engine.flavour),
        )
        digest = hashlib.sha256("\n".join(key).encode()).hexdigest()[:16]
        self.path = cache() / "templates" / f"{engine.flavour}-{engine.version}-{digest}"

    def copy(self, target: Path) -> None:
        """Make `target` a data directory; the template is made first if there is none or files of it are missing.

        Of several kits at once one makes it, and the others wait. Raises `UserError` where it cannot be kept.
        """
        _open_up(self.path.parent)
        lock = files.ProcessLock(self.path.with_name(f"{self.path.name}.lock"))
        lock.acquire(wait=True)
        try:
            if not self._whole():
                self._make()
            _copy(self.path / "data", target)
        finally:
            lock.release()

    def discard(self) -> None:
        """Forget the template, so that the next copy is of a new one."""
        (self.path / "stamp").unlink(missing_ok=True)

    def _whole(self) -> bool:
        stamp = self.path / "stamp"
        return stamp.exists() and stamp.read_text() == _listing(self.path / "data")

    def _make(self) -> None:
        free = shutil.disk_usage(self.path.parent).free
        if free < ROOM:
            raise UserError(
                f"{self.path.parent}: {free >> 20} MB are free, a database template takes {ROOM >> 20}; "
                "make room or set COEVOLVE_CACHE elsewhere."
            )
        with files.directory(self.path) as aside:
            aside.chmod(0o711)
            (aside / "data").mkdir()
            own(aside / "data")
            _initialise(self._engine, aside / "data")
            _load(self._engine, aside / "data", self._dump)
            (aside / "stamp").write_text(_listing(aside / "data"))


def wait_until_ready(process: Process, user: str) -> pymysql.Connection[pymysql.cursors.Cursor]:
    """A connection of `user` as soon as the server takes one; `EnvError` quotes its log if there is none."""
    deadline = time.monotonic() + START_SECONDS
    while not process.ended(within=0.02) and time.monotonic() < deadline:
        try:
            return pymysql.connect(
                unix_socket=str(process.directory.socket),
                user=user,
                read_timeout=START_SECONDS,
                ssl_disabled=True,
                client_flag=CLIENT.MULTI_STATEMENTS,
            )
        except pymysql.OperationalError:
            continue
    raise EnvError(f"the database server did not start: {process.directory.last_words()}")


def _open_up(folder: Path) -> None:
    """Make the cache and `folder` in it if there are none, and see that the server can enter them."""
    try:
        for made in (folder.parent, folder):
            if not made.exists():
                made.mkdir(parents=True, exist_ok=True)
                # Whatever the user's mask says.
                made.chmod(0o755)
        if not os.access(folder, os.W_OK):
            raise PermissionError("no permission to write")
    except OSError as error:
        raise UserError(f"{folder}: cannot be used ({error}); set COEVOLVE_CACHE to a directory of yours.") from None
    if closed(folder):
        raise UserError(
            f"{folder}: closed to nobody, as whom the server runs; open it or set COEVOLVE_CACHE elsewhere."
        )


def _initialise(engine: Engine, data: Path) -> None:
    """Put the server's own tables into the empty directory `data`."""
    if engine.flavour == "mysql":
        option, statements = "--initialize-insecure", b""
    else:
        option, statements = "--bootstrap", b"CREATE DATABASE mysql;\nUSE mysql;\n" + _mariadb_system_tables(engine)
    directory = Directory()
    directory.stdin.write_bytes(statements)
    process = Process(settings.command(engine, directory, data, option), directory)
    try:
        _wait_for_success(process, f"initialise {data}")
    finally:
        process.end()


def _wait_for_success(process: Process, task: str) -> None:
    code = process.code() if process.ended(within=START_SECONDS) else None
    if code != 0:
        raise EnvError(f"the database server did not {task} (return code {code}): {process.directory.last_words()}")


def _mariadb_system_tables(engine: Engine) -> bytes:
    """The statements that MariaDB's packages ship for it."""
    usr = Path(engine.command[-1]).resolve().parents[1]
    for share in (usr / "share" / "mysql", usr / "share" / "mariadb"):
        if (share / MARIADB_SYSTEM_TABLES[0]).exists():
            return b"".join((share / name).read_bytes() for name in MARIADB_SYSTEM_TABLES)
    raise UserError(
        f"{engine.command[-1]}: no {MARIADB_SYSTEM_TABLES[0]} under {usr / 'share'}; correct `server.binary`."
    )


def _load(engine: Engine, data: Path, dump: Path) -> None:
    """Load the dump, leave the reading account alone, and fix the tables' statistics."""
    directory = Directory()
    process = Process(settings.command(engine, directory, data, LOADING), directory)
    try:
        with wait_until_ready(process, "root") as connection, connection.cursor() as cursor:
            _run(cursor, dump.read_text(encoding="utf-8"))
            for table in tables(cursor, dumps.databases(dump)):
                _run(cursor, f"ANALYZE TABLE {table}")
            _run(cursor, ";".join(settings.after_loading(engine.flavour)))
            _run(cursor, "SHUTDOWN")
        _wait_for_success(process, f"load {dump}")
    except pymysql.MySQLError as error:
        raise EnvError(f"the database server did not load {dump}: {error}; {directory.last_words()}") from error
    finally:
        process.end()


def tables(cursor: pymysql.cursors.Cursor, databases: Sequence[str]) -> list[str]:
    """All tables of `databases`, quoted, with their database."""
    cursor.execute(
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema IN %s ORDER BY 1, 2",
        [[name.lower() for name in databases]],
    )
    return [f"`{schema}`.`{table}`" for schema, table in cursor.fetchall()]


def _run(cursor: pymysql.cursors.Cursor, statements: str) -> None:
    cursor.execute(statements)
    while cursor.nextset():
        pass


def _copy(source: Path, target: Path) -> None:
    """A copy that keeps owners and holes, and shares blocks where the file system can."""
    done = subprocess.run(["cp", "--archive", "--reflink=auto", source, target], capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(target, ignore_errors=True)
        raise UserError(f"{target}: cannot be written ({done.stderr.strip()[-200:]}); make room, then run again.")


def _listing(data: Path) -> str:
    """Names and sizes of all files."""
    files = sorted(path for path in data.rglob("*") if path.is_file())
    return "".join(f"{path.stat().st_size} {path.relative_to(data)}\n" for path in files)
