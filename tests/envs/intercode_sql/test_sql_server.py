"""What the server holds, and who may do what there."""

import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pymysql
import pytest
from envs.intercode_sql.sections import folder

from coevolve.envs.base import EnvError
from coevolve.envs.intercode_sql.dump import databases
from coevolve.envs.intercode_sql.server import DatabaseServer
from coevolve.envs.intercode_sql.server_program import DEFAULT_CONFIG
from coevolve.errors import UserError

SESSIONS = 200
#: CPU seconds of a server until it answers.
READY_SECONDS = 3.0
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


def test_all_tables_are_there_in_any_case_and_what_text_depends_on_is_as_in_mysql_8(server, dump):
    names = tuple(name.lower() for name in databases(dump))
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
