"""Sessions on the real server: what rows read like, what is left between episodes, what becomes of lost connections."""

import contextlib
import os
import signal
import threading
import time

import psutil
import pytest

from coevolve.envs.base import EnvError
from coevolve.envs.intercode_sql.session import INTERRUPTED, NOT_UTF8, TOO_LONG, QueryResult, SqlSession
from coevolve.errors import UserError


@pytest.fixture
def session(server):
    with contextlib.closing(SqlSession(server)) as session:
        session.use("world_1")
        yield session
        session.close()  # closing twice is harmless


#: Statement -> the rows as mysql-connector printed them. The values of the first two were recorded in 2023.
PRINTED = {
    "SELECT AVG(GNP), SUM(Population) FROM country WHERE GovernmentForm = 'US Territory'": (
        "[(510.333333, Decimal('329000'))]"
    ),
    "SELECT date_of_treatment FROM dog_kennels.treatments ORDER BY treatment_id LIMIT 1": (
        "[(datetime.datetime(2018, 3, 19, 4, 39, 54),)]"
    ),
    "SHOW TABLES": "[('city',), ('country',), ('countrylanguage',)]",
    "SELECT Name FROM city WHERE ID < 0": "[]",
    "SELECT 1, 1.50, 1e0, 'it''s', NULL, TRUE": "[(1, Decimal('1.50'), 1.0, \"it's\", None, 1)]",
    "SELECT DATE('2020-02-29'), CAST('2020-02-29 01:02:03' AS DATETIME)": (
        "[(datetime.date(2020, 2, 29), datetime.datetime(2020, 2, 29, 1, 2, 3))]"
    ),
    "SELECT TIME('-25:06:17'), TIME('00:00:01.5')": (
        "[(datetime.timedelta(days=-2, seconds=82423), datetime.timedelta(seconds=1, microseconds=500000))]"
    ),
    "SELECT CAST('abc' AS BINARY), X'00FF'": "[(b'abc', b'\\x00\\xff')]",
    "SELECT JSON_OBJECT('a', 1)": "[('{\"a\": 1}',)]",
    "SELECT 'é', '日本', '😀'": "[('é', '日本', '😀')]",
    "SELECT 1 AS 'é'": "[(1,)]",
}


@pytest.mark.parametrize(("statement", "printed"), PRINTED.items(), ids=range(len(PRINTED)))
def test_rows_read_as_they_did(session, statement, printed):
    assert str(session.execute(statement).rows) == printed


def test_dates_without_a_day_are_none_and_columns_are_described_in_plain_text(session):
    session.execute("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'")
    dates = "CAST('0000-00-00' AS DATE), CAST('2020-02-31' AS DATE), CAST('0000-00-00 00:00:00' AS DATETIME)"
    assert session.execute(f"SELECT {dates}") == QueryResult([(None, None, None)])
    assert session.execute("DESCRIBE city").rows[0] == ("ID", "int", "NO", "PRI", None, "auto_increment")


def test_an_error_is_the_servers_message_alone_also_where_the_agent_has_made_it_unreadable(session):
    assert session.execute("SELECT * FROM towns") == QueryResult(None, "Table 'world_1.towns' doesn't exist")
    assert session.execute("SELECT town FROM city") == QueryResult(None, "Unknown column 'town' in 'field list'")
    assert session.execute("SELEC 1").error.startswith("You have an error in your SQL syntax; check the manual")
    session.execute("SET character_set_results = ucs2")
    assert session.execute("SELECT * FROM towns") == QueryResult(None, NOT_UTF8)


@pytest.mark.parametrize("statement", ["SET @x = 1", "USE car_1", "DO 1", "BEGIN", "SELECT 1 INTO @x", "-- nothing"])
def test_no_result_set_is_neither_rows_nor_an_error(session, statement):
    assert session.execute(statement) == QueryResult(None)


#: What an episode may leave behind, and what shows it in the next one.
LEFTOVERS = [
    ("SET @x = 7", "SELECT @x"),
    ("SET SESSION sql_mode = 'ANSI_QUOTES'", 'SELECT "a"'),
    ("SET sql_select_limit = 1", "SELECT ID FROM city ORDER BY ID"),
    ("SET time_zone = '+05:00'", "SELECT @@time_zone, FROM_UNIXTIME(0)"),
    ("SET NAMES latin1", "SELECT 'é', @@character_set_client, @@collation_connection"),
    ("START TRANSACTION READ ONLY", "SET TRANSACTION READ WRITE"),
    ("PREPARE s FROM 'SELECT 1'", "EXECUTE s"),
    ("USE car_1", "SELECT DATABASE()"),
    ("SELECT LAST_INSERT_ID(7)", "SELECT LAST_INSERT_ID()"),
    ("SELECT 1/0", "SHOW WARNINGS"),
    ("HANDLER city OPEN", "HANDLER city READ FIRST"),
]


@pytest.mark.parametrize(("left", "probe"), LEFTOVERS, ids=[left for left, _ in LEFTOVERS])
def test_an_episode_sees_nothing_of_the_one_before(server, left, probe):
    with contextlib.closing(SqlSession(server)) as session:
        session.use("world_1")
        fresh = session.execute(probe)
        session.use("world_1")
        session.execute(left)
        assert session.execute(probe) != fresh
        session.use("world_1")
        assert session.execute(probe) == fresh


def test_named_locks_are_freed_soon_after_their_episode(server, session):
    with contextlib.closing(SqlSession(server)) as other:
        other.use("world_1")
        assert session.execute("SELECT GET_LOCK('a', 0)") == QueryResult([(1,)])
        session.use("world_1")
        assert other.execute("SELECT GET_LOCK('a', 5)") == QueryResult([(1,)])


@pytest.mark.parametrize(
    "statements",
    [
        ("SELECT a.ID FROM city a, city b",),
        ("SELECT a.ID FROM city a, city b LIMIT 20000",),
        ("SELECT a.ID FROM city a, city b LIMIT 1000000",),
        ("SET sql_select_limit = DEFAULT, sql_select_limit = 1000000", "SELECT a.ID FROM city a, city b"),
    ],
)
def test_rows_are_limited_whatever_the_statement_says(session, statements):
    *before, last = statements
    for statement in before:
        session.execute(statement)
    session.execute("SET @x = 7")
    assert len(session.execute(last).rows) == 20_000
    kept = None if "1000000" in " ".join(statements) else 7  # a longer result ends the session's connection
    assert session.execute("SELECT @x") == QueryResult([(kept,)])


def test_a_session_that_is_killed_between_statements_or_in_one_goes_on(server, session):
    kill(server, session)
    assert session.execute("SELECT DATABASE()") == QueryResult([("world_1",)])
    timer = threading.Timer(0.5, kill, (server, session))
    timer.start()
    assert session.execute("SELECT SLEEP(1), DATABASE()") == QueryResult([(0, "world_1")])
    timer.join()
    ends_itself = "SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317, MESSAGE_TEXT = 'over'"
    assert session.execute(ends_itself) == QueryResult(None, INTERRUPTED)
    assert session.execute("SELECT 1") == QueryResult([(1,)])


def test_a_statement_of_the_greatest_length_is_sent(session):
    longest = "SELECT '" + "😀" * (250_000 - 9) + "'"
    assert len(session.execute(longest).rows[0][0]) == 250_000 - 9
    assert session.execute(longest + " ") == QueryResult(None, TOO_LONG)


def test_a_database_that_does_not_exist_is_the_users_error(session):
    with pytest.raises(UserError, match="world_2"):
        session.use("world_2")
    session.use("car_1")
    assert session.execute("SELECT DATABASE()") == QueryResult([("car_1",)])


@pytest.mark.slow
def test_a_server_stopped_in_a_statement_fails_it(own_server):
    server = own_server(statement_seconds=1.0)
    session = SqlSession(server)
    session.use("world_1")
    os.kill(server.pid, signal.SIGSTOP)
    threads = [psutil.Process(thread.id) for thread in psutil.Process(server.pid).threads()]
    while any(thread.status() != psutil.STATUS_STOPPED for thread in threads):
        time.sleep(0.01)  # a thread that waits for a processor stops later, and could still answer
    with pytest.raises(EnvError):
        session.execute("SELECT 1")
    session.use("world_1")
    assert session.execute("SELECT 1") == QueryResult([(1,)])


def kill(server, session):
    with server.connect() as connection:
        connection.kill(session._connection.thread_id())
