"""Attacks on the server's memory, disk and other sessions: each ends as an observation, the next episode is right."""

import contextlib
import itertools
import random
import threading
import time

import psutil
import pymysql
import pytest
from envs.intercode_sql.sections import folder

from coevolve.envs.intercode_sql import refusals, supervisor
from coevolve.envs.intercode_sql.server import DatabaseServer
from coevolve.envs.intercode_sql.server_program import DEFAULT_CONFIG
from coevolve.envs.intercode_sql.session import LIMIT_PASSED, REFUSED, QueryResult, SqlSession

#: Attacks end at a bound of memory or of temporary files, however slow the machine is.
STATEMENT_SECONDS = 600.0
#: MySQL takes 230 MiB before its first statement.
MEMORY_MB = 512
NEIGHBOUR = "neighbour's connection"

LIFTED = (
    "SET SESSION max_execution_time = 0",
    "SET SESSION cte_max_recursion_depth = 4294967295",
    "SET SESSION group_concat_max_len = 4294967295",
)
MEMORY = {
    "variables": ("SET " + ", ".join(f"@a{number} = REPEAT('x', 1000000)" for number in range(600)),),
    "variables of several statements": tuple(
        "SET " + ", ".join(f"@`a {number}` = REPEAT('x', 1000000)" for number in range(start, start + 60))
        for start in range(0, 600, 60)
    ),
    "aggregate": (*LIFTED, "SET @a = (SELECT GROUP_CONCAT(REPEAT('x', 1000000)) FROM city)"),
}
DISK = {
    "recursion": (
        *LIFTED,
        "WITH RECURSIVE n AS (SELECT 1 AS i, REPEAT('x', 1000000) AS t UNION ALL SELECT i + 1, t FROM n) "
        "SELECT COUNT(*), MAX(t) FROM n",
    ),
    "distinct rows": (
        *LIFTED,
        "SELECT COUNT(*) FROM (SELECT DISTINCT a.ID, b.ID AS i, REPEAT(a.Name, 800) FROM city a, city b) t",
    ),
}
#: Ways to hide a command that the fragments below do not find; `{}` is the command.
HIDDEN = {
    "comment inside a versioned one": "/*!40000 /* x */ {} */",
    "text prepared": 'PREPARE s FROM "{}"',
    "text in a variable": "PREPARE s FROM @command",
}
ATTACKS = {
    **{f"memory: {name}": statements for name, statements in MEMORY.items()},
    **{f"disk: {name}": statements for name, statements in DISK.items()},
    **{
        f"KILL: {name}": (f"SET @command = 'KILL {NEIGHBOUR}'", way.format(f"KILL {NEIGHBOUR}"), "EXECUTE s")
        for name, way in HIDDEN.items()
    },
    **{
        f"XA: {name}": tuple(
            text
            for step in ("START", "END", "PREPARE")
            for text in (f"SET @command = \"XA {step} 'a'\"", way.format(f"XA {step} 'a'"), "EXECUTE s")
        )
        for name, way in HIDDEN.items()
    },
}


@pytest.fixture(scope="module")
def limited(dump):
    """A server with low limits."""
    bounds = {"statement_seconds": STATEMENT_SECONDS, "memory_mb": MEMORY_MB, "temporary_mb": 256}
    with DatabaseServer(DEFAULT_CONFIG.model_copy(update=bounds), dump) as server:
        yield server


@pytest.fixture
def most_temporary_bytes(limited):
    """The largest size of the server's temporary files during a test, as the only element of a list."""
    most, ended = [0], threading.Event()

    def watch():
        while not ended.wait(0.05):
            # The server is replaced in some tests.
            with contextlib.suppress(psutil.Error, OSError, TypeError):
                most[0] = max(most[0], temporary_bytes(limited))

    thread = threading.Thread(target=watch)
    thread.start()
    yield most
    ended.set()
    thread.join()


def temporary_bytes(server):
    return supervisor.temporary_bytes(server.pid, folder(server))


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_ends_as_an_observation(limited, attacker, neighbour, most_temporary_bytes, attack):
    number = neighbour.execute("SELECT CONNECTION_ID()").rows[0][0]
    pid = limited.pid
    for statement in ATTACKS[attack]:
        result = attacker.execute(statement.replace(NEIGHBOUR, str(number)))
        assert isinstance(result, QueryResult)
        assert attacker.execute("SELECT COUNT(*) FROM city") == QueryResult([(4079,)])
    assert (result.error == LIMIT_PASSED) == (limited.pid != pid) == (attack == "memory: aggregate")
    attacker.use("world_1")
    assert attacker.execute("SELECT Name FROM city WHERE ID = 1") == QueryResult([("Kabul",)])
    # A raw connection finds no prepared transaction of this name.
    with limited.connect("world_1") as connection, connection.cursor() as cursor:
        for step in ("START", "END", "ROLLBACK"):
            cursor.execute(f"XA {step} 'a'")
    if limited.pid == pid:
        assert neighbour.execute("SELECT @mine, CONNECTION_ID()") == QueryResult([(42, number)])
    while temporary_bytes(limited) >= 64 << 20:  # at last the test's time limit
        time.sleep(0.1)
    assert most_temporary_bytes[0] < limited.config.temporary_mb << 20
    assert psutil.Process(limited.pid).memory_info().rss < limited.config.memory_mb << 20


def test_a_server_that_passes_its_limit_is_replaced(limited, attacker, neighbour):
    """Sessions each hold less than the limit and together more: none is told that it passed it."""
    pid = limited.pid
    values = "SET " + ", ".join(f"@a{number} = REPEAT('x', 1000000)" for number in range(95))
    sessions = [SqlSession(limited) for _ in range(6)]
    with contextlib.ExitStack() as closing:
        for session in sessions:
            closing.callback(session.close)
            session.use("world_1")
        while limited.pid == pid:
            session = sessions.pop()
            assert session.execute(values) == QueryResult(None)
            time.sleep(2 * supervisor.CHECK_SECONDS)
    assert neighbour.execute("SELECT @mine") == QueryResult([(42,)])
    attacker.use("world_1")
    assert attacker.execute("SELECT COUNT(*) FROM city") == QueryResult([(4079,)])
    assert limited.pid not in (pid, None)


FRAGMENTS = (
    *("/*", "*/", "/*!", "/*!50000", "/*!999999 ", "-- ", "--", "--\x01", "#", "\n", "\r", "\v"),
    *("\0", "\x01", "\x7f", "\xa0", "\x85", "'", '"', "`", "\\", ";", "(", " ", "x"),
)


def test_the_server_executes_no_command_that_is_not_refused(limited):
    """Where the server finds a SELECT behind some text, KILL behind the same text is refused."""
    chosen = random.Random(0)
    texts = [*itertools.product(FRAGMENTS, repeat=2), *(chosen.choices(FRAGMENTS, k=4) for _ in range(700))]
    executed = 0
    with limited.connect("world_1") as connection, connection.cursor() as cursor:
        for text in map("".join, texts):
            with contextlib.suppress(pymysql.MySQLError):
                cursor.execute(f"{text}SELECT 7")
                if cursor.fetchall() == ((7,),):
                    executed += 1
                    assert refusals.is_refused(f"{text}KILL 7"), text
                    assert refusals.is_refused(f"{text}XA RECOVER"), text
    assert executed > 30


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 'KILL 1', \"XA START 'a'\", `kill` FROM t",
        "/* KILL 1 */ SELECT name AS xa FROM t -- KILL 1",
        "# XA START 'a'\nSELECT xa.name FROM t xa",
        "SELECT CASE WHEN xa THEN 1 ELSE xa END FROM t WHERE title = 'Kill Bill",
        "SET @title = 'Kill Bill'",
        "PREPARE s FROM \"SELECT 'x' AS xa\"",
        "EXECUTE s",
        "SELECT skill FROM prepared",
        "(SELECT 1 AS `prepare`) UNION (SELECT 'é kill')",
    ],
)
def test_the_words_elsewhere_are_not_refused(statement):
    assert not refusals.is_refused(statement)


@pytest.mark.parametrize(
    "setting", ["SET NAMES sjis", "SET @@sql_mode = 'ANSI_QUOTES'", "PREPARE s FROM 'SET NAMES gbk'"]
)
def test_after_a_change_of_syntax_the_words_are_refused_anywhere(attacker, setting):
    assert attacker.execute("SELECT 'KILL'") == QueryResult([("KILL",)])
    attacker.execute(setting)
    assert attacker.execute("SELECT 'KILL'") == QueryResult(None, REFUSED)
    attacker.use("world_1")
    assert attacker.execute("SELECT 'KILL'") == QueryResult([("KILL",)])


@pytest.mark.parametrize("unit", ["SET ", "/*", "'", "--", "@'", "@`", "''", "\\'", "KILL ", "XA/*", "`", "#", "x@"])
def test_long_statements_are_read_in_linear_time(unit):
    """Ten times the length takes far less than a hundred times the time; 5 ms is what a clock may miss."""

    def spent(length):
        started = time.process_time()
        for text in (unit * (length // len(unit)), f"SET @x = KILL {unit * (length // len(unit))}"):
            refusals.is_refused(text)
            refusals.changes_syntax(text)
            refusals.variables(text)
        return time.process_time() - started

    short, long = (min(spent(length) for _ in range(3)) for length in (24_000, 240_000))
    assert long < 40 * (short + 0.005)


def test_variables_are_told_apart_as_the_server_does():
    texts = ("SET @a = 1, @`a` = 2", "SELECT @A + @b.c", "SELECT @'a b', @`a``b`, @😀1, @😀2")
    assert set().union(*map(refusals.variables, texts)) == {"a", "`a`", "b.c", "'a b'", "`a``b`", "😀1", "😀2"}
