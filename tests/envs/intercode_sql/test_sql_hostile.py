"""What an agent may try: each ends as an answer in bounded time, and nobody else, then or later, sees any of it."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coevolve.envs.intercode_sql.server import DatabaseServer
from coevolve.envs.intercode_sql.server_program import DEFAULT_CONFIG
from coevolve.envs.intercode_sql.session import TIMED_OUT, QueryResult, SqlSession

STATEMENT_SECONDS = 1.0

#: What every session answers alike, whatever was tried before. The last one shows a variable of the session itself.
PROBE = (
    "SELECT DATABASE(), @@sql_mode, @@autocommit, @@sql_select_limit, @@time_zone, @@character_set_results",
    "SHOW TABLES",
    "SELECT * FROM city ORDER BY ID LIMIT 20",
    "SELECT Continent, COUNT(*) FROM country GROUP BY Continent ORDER BY Continent",
    "SELECT * FROM towns",
    "EXECUTE s",
    "SELECT @mine",
)

LIFTED = (
    "SET SESSION max_execution_time = 0",
    "SET SESSION sql_select_limit = DEFAULT",
    "SET SESSION cte_max_recursion_depth = 4294967295",
)
ENDLESS = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n) SELECT "

#: What a privilege more, or none, would allow: the account may only SELECT, as its grants say.
WRITES = (
    "DELETE FROM city",
    "CREATE TEMPORARY TABLE towns (id INT)",
    "SET PASSWORD = 'x'",
    "ALTER USER CURRENT_USER() IDENTIFIED BY 'x'",
    "SET GLOBAL max_connections = 1",
    "SET GLOBAL super_read_only = OFF",
    "SET PERSIST max_connections = 1",
    "FLUSH TABLES WITH READ LOCK",
    "LOCK TABLES city WRITE",
    "LOCK TABLES city READ",
    "LOCK INSTANCE FOR BACKUP",
    "SELECT * FROM city FOR UPDATE",
    "SHUTDOWN",
    "KILL 1",
    "SELECT * INTO OUTFILE '/tmp/coevolve-hostile' FROM city",
    "SELECT 1 INTO DUMPFILE '/tmp/coevolve-hostile'",
    "LOAD DATA INFILE '/etc/passwd' INTO TABLE city",
    "LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE city",
    "CALL sys.table_exists('world_1', 'city', @x)",
    "XA START 'a'",
)

#: Refused, empty or malformed.
NONSENSE = (
    "SELECT 1; DROP TABLE city",
    "DELIMITER //",
    "",
    ";",
    *("`", "SELECT `", "SELECT 'a", "SELECT /* a", "\x00"),
    "SELECT " + "a" * 100_000,
    "SELECT " + "1 + " * 50_000 + "1",
    "SELECT " + "(" * 100_000,
    "SELECT SLEEP(1000",
    "USE nowhere",
    "EXECUTE s",
    "no\ud800thing",
    "SELECT * FROM city UNION SELECT * FROM country",
)

#: Episodes that are answered, and must leave nothing.
ALLOWED = (
    ("START TRANSACTION", "CREATE TABLE towns (id INT)", "COMMIT"),
    ("SET autocommit = 0", "SELECT * FROM city FOR SHARE", "DELETE FROM city"),
    ("SELECT GET_LOCK('world', 0)",),
    ("SELECT LOAD_FILE('/etc/passwd')",),
    ("SELECT COUNT(*) FROM city INTO @mine", "SELECT @mine"),
    ("SET @mine = 7", "SELECT @mine := @mine + 1"),
    ("SET character_set_results = utf16", "SELECT * FROM city"),
    ("SET character_set_results = latin1", "SELECT 'é'", "SELECT 'é' AS 'é'"),
    ("PREPARE s FROM 'DROP TABLE city'", "EXECUTE s"),
    ("SET @k = CONCAT('KILL ', CONNECTION_ID())", "PREPARE s FROM @k", "EXECUTE s", "SELECT 1"),
    ("USE mysql", "SELECT * FROM user", "DELETE FROM user"),
    ("SELECT user, host, authentication_string FROM mysql.user",),
    ("SELECT * FROM information_schema.columns",),
    *((f"SHOW {what}",) for what in ("PROCESSLIST", "VARIABLES", "CREATE TABLE city")),
    *((text,) for text in ("-- ", "/* nothing */", "SELECT 1 -- \x00")),
    ("SELECT '\x00', '\ud800', '😀'",),
    ("SELECT " + ", ".join(["1"] * 10_000),),
    ("SELECT " + "(" * 5_000 + "1" + ")" * 5_000,),
    ("SELECT '" + "x" * 100_000 + "'",),
    ("SELECT REPEAT('x', 1000000000)",),
    ("SELECT REPEAT('x', 1000000), city.* FROM city LIMIT 4000",),
    ("SELECT a.* FROM city a, city b LIMIT 1000000",),
    ("SET group_concat_max_len = 1000000000", "SELECT GROUP_CONCAT(a.Name, b.Name) FROM city a, city b"),
    ("SET timestamp = 1", "SELECT NOW()"),
    (*LIFTED, "SELECT a.Name FROM city a, city b"),
    ("SELECT SLEEP(1000)",),
    ("SELECT BENCHMARK(1000000000000, 1 + 1)",),
    ("SELECT COUNT(*) FROM city a, city b, city c WHERE a.ID + b.ID > c.ID",),
    ("SELECT * FROM city a, city b, city c ORDER BY a.ID + b.ID + c.ID",),
    ("SET cte_max_recursion_depth = 4294967295", ENDLESS + "SUM(i) FROM n"),
    (ENDLESS + "* FROM n",),
)

#: What the server's own limit does not cover, or an agent has lifted: ended from outside.
STALLS = (
    ("DO SLEEP(1000)",),
    ("SET @x = SLEEP(1000)",),
    (*LIFTED, "SELECT SLEEP(1000)"),
    (*LIFTED, "SELECT COUNT(*) FROM city a, city b, city c WHERE a.ID + b.ID > c.ID"),
    (*LIFTED, ENDLESS + "SUM(i) FROM n"),
    (*LIFTED, "SELECT SLEEP(0.5), REPEAT('x', 100000) FROM city"),
)


@pytest.fixture(scope="module")
def limited(dump):
    """A server that gives a statement one second."""
    with DatabaseServer(DEFAULT_CONFIG.model_copy(update={"statement_seconds": STATEMENT_SECONDS}), dump) as server:
        yield server


@pytest.fixture(scope="module")
def fresh(limited):
    """What a session answers where nothing has happened yet."""
    with contextlib.closing(SqlSession(limited)) as session:
        session.use("world_1")
        return probe(session)


@pytest.fixture(scope="module")
def untouched(limited, fresh):
    return contents(limited)


@pytest.fixture(autouse=True)
def nothing_is_seen(limited, fresh, untouched, attacker, neighbour):
    """After each test the neighbour, the attacker's next episode and the databases are as they were."""
    pid = limited.pid
    yield
    assert probe(neighbour) == [*fresh[:-1], QueryResult([(42,)])]
    attacker.use("world_1")
    assert probe(attacker) == fresh
    assert contents(limited) == untouched
    assert limited.pid == pid
    assert not Path("/tmp/coevolve-hostile").exists()


def probe(session):
    return [session.execute(statement) for statement in PROBE]


def contents(server):
    """Databases, tables, columns and checksums, as a session finds them."""
    ours = "table_schema NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema') ORDER BY 1, 2, 3"
    with contextlib.closing(SqlSession(server)) as session:
        session.use("world_1")
        tables = session.execute(
            f"SELECT table_schema, table_name, table_type FROM information_schema.tables WHERE {ours}"
        )
        names = ", ".join(f"`{schema}`.`{table}`" for schema, table, _ in tables.rows)
        columns = f"SELECT table_schema, table_name, column_name FROM information_schema.columns WHERE {ours}"
        accounts = "SELECT user, host FROM mysql.user ORDER BY 1, 2"
        return [tables, *map(session.execute, (f"CHECKSUM TABLE {names}", columns, accounts, "SHOW DATABASES"))]


def attempt(session, statements):
    answers = [session.execute(statement) for statement in statements]
    assert all(len(str(answer.rows)) < 20_000_000 for answer in answers)
    return answers


def test_there_is_something_to_lose_and_the_account_may_only_read(attacker, fresh, untouched):
    assert fresh[1].rows == [("city",), ("country",), ("countrylanguage",)]
    assert fresh[-1] == QueryResult([(None,)])
    assert len(untouched[1].rows) == 81 and all(checksum for _, checksum in untouched[1].rows[:20])
    grants = {grant.partition(" ON ")[0] for (grant,) in attacker.execute("SHOW GRANTS").rows}
    assert grants == {"GRANT SELECT, SHOW VIEW"}


@pytest.mark.parametrize("statement", [*WRITES, *NONSENSE], ids=lambda text: repr(text[:40]))
def test_what_would_change_something_or_is_nonsense_is_an_error(attacker, statement):
    [answer] = attempt(attacker, [statement])
    assert answer.rows is None and answer.error


@pytest.mark.parametrize("statements", ALLOWED, ids=lambda texts: repr(texts[0][:30]))
def test_what_is_allowed_ends_in_time_and_leaves_nothing(attacker, statements):
    attempt(attacker, statements)


def test_stalls_are_ended_and_do_not_stop_others(limited, neighbour, fresh):
    def stall(statements):
        with contextlib.closing(SqlSession(limited)) as session:
            session.use("world_1")
            *_, last = attempt(session, statements)
            assert session.execute("SELECT DATABASE()") == QueryResult([("world_1",)])
            return last

    with ThreadPoolExecutor(len(STALLS)) as threads:
        stalled = [threads.submit(stall, statements) for statements in STALLS]
        for _ in range(10):
            assert probe(neighbour)[:-1] == fresh[:-1]
            time.sleep(0.2)
        answers = [future.result() for future in stalled]
    assert answers == [QueryResult(None, TIMED_OUT)] * len(STALLS)
    working = "SELECT COUNT(*) FROM information_schema.processlist WHERE command <> 'Sleep'"
    while neighbour.execute(working) != QueryResult([(1,)]):  # at last the test's time limit
        time.sleep(0.1)
