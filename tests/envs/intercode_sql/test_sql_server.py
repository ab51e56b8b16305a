"""What the server holds, who may do what there, and how it is reached."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pymysql
import pytest
from envs.intercode_sql.sections import folder

from coevolve.envs.base import EnvError
from coevolve.envs.intercode_sql import data_directory, server_options
from coevolve.envs.intercode_sql.server import DatabaseServer
from coevolve.envs.intercode_sql.server_process import ServerDirectory, ServerProcess
from coevolve.envs.intercode_sql.server_program import DEFAULT_CONFIG, find_server_program
from coevolve.errors import UserError

SESSIONS = 200
#: CPU seconds of a server until it answers.
READY_SECONDS = 3.0
PASSWORD = "\u043a\u043b\u044e\u0447"  # is not Latin-1
ACCESS_DENIED = (1045, 1698, 3118)
#: Answers that recorded observations depend on, as MySQL 8.0 has them.
MYSQL_DEFAULTS = {
    "sql_mode": "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION",
    "character_set_server": "utf8mb4",
    "collation_server": "utf8mb4_0900_ai_ci",
    "collation_connection": "utf8mb4_0900_ai_ci",
    "time_zone": "SYSTEM",
    "system_time_zone": "UTC",
    "innodb_stats_auto_recalc": 0,
    "lower_case_table_names": 1,
}


def ask(server, statement, database=""):
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def test_all_tables_are_there_in_any_case_and_what_text_depends_on_is_as_in_mysql_8(server):
    names = tuple(name.lower() for name in server.databases())
    present = {row[0] for row in ask(server, "SHOW DATABASES")}
    assert len(names) == 20 and set(names) <= present
    assert ask(server, f"SELECT COUNT(*) FROM mysql.innodb_table_stats WHERE database_name IN {names}") == ((81,),)
    assert ask(server, f"SELECT COUNT(*) FROM information_schema.tables WHERE table_schema IN {names}") == ((81,),)
    assert ask(server, "SELECT Name FROM CITY WHERE ID = 1", "World_1") == (("Kabul",),)
    variables = ", ".join(f"@@{name}" for name in MYSQL_DEFAULTS)
    assert dict(zip(MYSQL_DEFAULTS, ask(server, f"SELECT {variables}")[0], strict=True)) == MYSQL_DEFAULTS
    name, version = server.identity.split()
    assert name == "MySQL" and ask(server, "SELECT VERSION()")[0][0].startswith(version)


def test_the_server_is_unprivileged_and_private_and_has_no_port_and_no_other_account(server):
    server.connect().close()
    process = psutil.Process(server.pid)
    assert process.uids().real != 0
    assert not process.net_connections(kind="inet")
    assert process.memory_info().rss < 400e6
    assert folder(server).stat().st_mode & 0o077 == 0
    assert process.environ()["TZ"] == "UTC" and "HOME" not in process.environ()
    for user, password in (("root", ""), ("admin", "admin"), ("stranger", "")):
        with pytest.raises(pymysql.OperationalError) as raised:
            pymysql.connect(unix_socket=f"{folder(server)}/mysqld.sock", user=user, password=password)
        assert raised.value.args[0] in ACCESS_DENIED


def test_a_database_or_a_dump_that_is_not_there_is_the_users_error(server, tmp_path):
    with pytest.raises(UserError, match="no_such_database"):
        server.connect("no_such_database")
    with pytest.raises(UserError, match=r"absent\.sql"):
        DatabaseServer(DEFAULT_CONFIG, tmp_path / "absent.sql").connect()


def test_two_hundred_sessions_at_once_and_a_full_server_that_is_not_started_again(server):
    together, before = threading.Barrier(SESSIONS), server.pid

    def session(number):
        together.wait()
        with server.connect("world_1") as connection, connection.cursor() as cursor:
            together.wait()
            cursor.execute("SELECT ID FROM city WHERE ID = %s", (number,))
            return cursor.fetchall()[0][0]

    with ThreadPoolExecutor(SESSIONS) as threads:
        assert list(threads.map(session, range(1, SESSIONS + 1))) == list(range(1, SESSIONS + 1))
    (most,) = ask(server, "SELECT @@max_connections")[0]
    assert most >= 300
    # The server keeps one place for an administrator.
    connections = [server.connect() for _ in range(most)]
    with pytest.raises(EnvError, match="Too many connections"):
        [server.connect() for _ in range(2)]
    for connection in connections:
        connection.close()
    assert ask(server, "SELECT 1") == ((1,),)
    assert server.pid == before


def test_two_servers_are_independent_and_a_new_one_is_soon_ready(own_server, server):
    connection, another = server.connect(), own_server()
    assert ask(another, "SELECT COUNT(*) FROM city", "world_1") == ((4079,),)
    assert another.pid != server.pid
    spent = psutil.Process(another.pid).cpu_times()
    assert spent.user + spent.system < READY_SECONDS
    another.close()
    assert another.pid is None
    with connection.cursor() as cursor:
        assert cursor.execute("SELECT 1") == 1


READERS = ("'reader'@'localhost'", "'remote'@'127.0.0.1'")
#: What an account may do, and words of the error.
UNSUITABLE = {
    "writer": ("SELECT, INSERT ON world_1.* TO @@", r"more than read .*INSERT ON `world_1`.*SHOW VIEW ON battle_death"),
    "wide": ("SELECT, SHOW VIEW ON *.* TO @@", r"more than read .*SELECT, SHOW VIEW ON \*\.\*"),
    "curious": ("SELECT (user) ON mysql.user TO @@", r"more than read .*ON `mysql`\.`user`"),
    "generous": ("SELECT ON world_1.* TO @@ WITH GRANT OPTION", "more than read .*GRANT OPTION"),
    "narrow": ("SELECT ON world_1.* TO @@", "no database battle_death, car_1"),
}


@pytest.fixture(scope="module")
def addresses(root, dump):
    """Addresses by account of a server that was not started by `DatabaseServer`."""
    program, directory = find_server_program(DEFAULT_CONFIG), ServerDirectory()
    data_directory.DataDirectoryTemplate(program, dump).copy(directory.data)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    statements = [f"CREATE USER 'reader'@'localhost' IDENTIFIED BY '{PASSWORD}'", "CREATE USER 'remote'@'127.0.0.1'"]
    finish = (root / "containers/mysql-server/finish.sql").read_text().splitlines()
    grants = [line.removesuffix(";") for line in finish if line.startswith("GRANT")]
    statements += [grant.replace("'coevolve'@'%'", account) for grant in grants for account in READERS]
    for user, granted in UNSUITABLE.items():
        statements += [
            f"CREATE USER '{user}'@'localhost'",
            f"GRANT {granted[0]}".replace("@@", f"'{user}'@'localhost'"),
        ]
    directory.init_file.write_text("".join(f"{statement};\n" for statement in statements), encoding="utf-8")
    directory.init_file.chmod(0o644)
    options = (
        f"--init-file={directory.init_file}",
        "--skip-networking=OFF",
        f"--port={port}",
        "--bind-address=127.0.0.1",
    )
    process = ServerProcess(server_options.server_command(program, directory, directory.data, *options), directory)
    data_directory.wait_until_ready(process, server_options.ACCOUNT).close()
    yield {user: f"{user}@{directory.socket}" for user in ("reader", *UNSUITABLE)} | {
        "remote": f"remote@127.0.0.1:{port}"
    }
    process.close()


@pytest.mark.parametrize("user", ["reader", "remote"])
def test_a_server_at_an_address_is_used(user, addresses, server, own_server, monkeypatch):
    monkeypatch.setenv("COEVOLVE_SQL_PASSWORD", PASSWORD if user == "reader" else "")
    given = own_server(address=addresses[user], rows=5)
    assert len(ask(given, "SELECT * FROM city", "world_1")) == 5
    assert (given.pid, given.identity) == (None, server.identity)


@pytest.mark.parametrize("user", UNSUITABLE)
def test_an_unsuitable_server_at_an_address_is_refused(user, addresses, own_server):
    given = own_server(address=addresses[user])
    for _ in range(2):
        with pytest.raises(UserError, match=UNSUITABLE[user][1]):
            given.connect("world_1")


@pytest.mark.parametrize(
    "address",
    ["", "localhost", "user@", "user@host", "@host:3306", "user@host:port", "/tmp/socket", "u@a..b:1", "u@host:65536"],
)
def test_an_address_that_is_none_is_the_users_error(address, own_server):
    with pytest.raises(UserError, match=r"server\.address"):
        own_server(address=address).connect()


def test_a_wrong_password_is_the_users_error_and_nobody_there_an_environments(
    addresses, own_server, monkeypatch, tmp_path
):
    monkeypatch.setenv("COEVOLVE_SQL_PASSWORD", "secret")
    with pytest.raises(UserError, match=r"server\.address.*Access denied.*COEVOLVE_SQL_PASSWORD"):
        own_server(address=addresses["reader"]).connect()
    with pytest.raises(EnvError, match="refused a connection"):
        own_server(address=f"user@{tmp_path}/no.sock").connect()
