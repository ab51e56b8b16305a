"""What MySQL answered in 2023 is what the kit's server answers: recorded runs and gold statements of InterCode."""

import json
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from coevolve.envs.intercode_sql import mariadb
from coevolve.envs.intercode_sql.gold_queries import GoldQueries, fingerprint
from coevolve.envs.intercode_sql.question_templates import template_tasks
from coevolve.envs.intercode_sql.recorded_runs import SqlReplayReport, compare, read, read_items
from coevolve.envs.intercode_sql.reward import reward
from coevolve.envs.intercode_sql.server import DatabaseServer
from coevolve.envs.intercode_sql.session import SqlSession
from coevolve.envs.intercode_sql.tasks import DATA
from coevolve.errors import UserError
from coevolve.records.episodes import Task

GPT4 = "ic_sql_multiturn_gpt-4_10_turns.json"
GPT35 = "ic_sql_react_10_turns.json"
SUBSET = 60
STATEMENTS = {GPT4: 5834, GPT35: 4214}
HOSTILE = (
    "ANALYZE TABLE {table}",
    "ALTER TABLE {table} ADD COLUMN mine INT",
    "CREATE INDEX mine ON {table} (mine)",
    "DELETE FROM {table}",
    "DROP TABLE {table}",
    "FLUSH TABLES",
    "OPTIMIZE TABLE {table}",
    "SET GLOBAL sql_mode = ''",
    "SET SESSION sort_buffer_size = 32768",
    "SELECT * FROM {table} ORDER BY 1 DESC LIMIT 3 FOR UPDATE",
)


@pytest.fixture
def mysql(server: DatabaseServer) -> DatabaseServer:
    if not server.comparable:
        pytest.skip(f"{server.identity}: the record is MySQL's")
    return server


@pytest.fixture
def other(own_server) -> DatabaseServer:
    """A MariaDB, where one is installed."""
    server = own_server(engine=["mariadb"])
    try:
        assert not server.comparable
    except UserError as error:
        pytest.skip(str(error))
    return server


@pytest.fixture(scope="module")
def dev_tasks(upstream: Path) -> list[Task]:
    items = enumerate(read_items(upstream / "intercode/ic_spider_dev.json"))
    return [
        Task(
            env="intercode_sql",
            task_id=f"intercode_sql/dev/{number}",
            split="train",
            data={"database": item.database, "gold": item.gold_query, "question": item.question},
        )
        for number, item in items
    ]


def compared(server: DatabaseServer, upstream: Path, name: str, limit: int | None = None) -> SqlReplayReport:
    return compare(server, read(upstream / "intercode" / name)[:limit])


@pytest.mark.parametrize("name", [GPT4, GPT35])
def test_the_first_items_are_answered_as_in_2023(mysql: DatabaseServer, upstream: Path, name: str) -> None:
    report = compared(mysql, upstream, name, SUBSET)
    assert report.episodes == SUBSET and report.statements > 3 * SUBSET
    assert report.stateless_share >= 0.99
    assert report.equal_overlaps >= 0.99 * report.rewards
    assert report.by_class["other"] == 0


@pytest.mark.slow
def test_both_recorded_runs_are_answered_as_in_2023(mysql: DatabaseServer, upstream: Path) -> None:
    """Of GPT-3.5's statements one in twenty met tables that upstream's server had been left with, and no dump has.

    Rows of information_schema come in an order that MySQL draws when it starts (up to 21 of 31 such statements).
    """
    reports = {name: compared(mysql, upstream, name) for name in STATEMENTS}
    assert {name: report.statements for name, report in reports.items()} == STATEMENTS
    different = sum((report.by_class for report in reports.values()), Counter())
    assert different["catalogue"] <= 25
    assert different.total() - different["catalogue"] <= 0.03 * sum(STATEMENTS.values())
    assert reports[GPT4].identical_share >= 0.98 and reports[GPT35].identical_share >= 0.95
    for report in reports.values():
        assert report.stateless_share >= 0.99
        assert report.equal_overlaps >= 0.995 * report.rewards
        assert report.by_class.keys().isdisjoint({"other", "verdict", "description", "digits", "time-out"})


@pytest.mark.slow
def test_the_past_of_a_server_does_not_show(mysql: DatabaseServer, upstream: Path) -> None:
    assert compared(mysql, upstream, GPT4) == compared(mysql, upstream, GPT4)


@pytest.mark.slow
def test_mariadb_is_measured_and_labelled(other: DatabaseServer, upstream: Path) -> None:
    for name in STATEMENTS:
        report = compared(other, upstream, name)
        assert not report.comparable and "non-comparable" in report.summary_line()
        assert 0.89 <= report.identical_share < 0.97
        assert report.by_class["other"] == 0


def test_mariadb_words_what_it_shares_with_mysql_alike(other: DatabaseServer) -> None:
    with closing(SqlSession(other)) as session:
        session.use("world_1")
        assert [row[1] for row in session.execute("DESCRIBE city").rows or ()] == [
            "int",
            "char(35)",
            "char(3)",
            "char(20)",
            "int",
        ]
        assert session.execute("SELECT nothing FROM city").error == "Unknown column 'nothing' in 'field list'"
        assert session.execute("SELECT 1 FROM city WHERE nothing").error == "Unknown column 'nothing' in 'where clause'"
        assert session.execute("SELECT Name FROM city JOIN country").error == "Column 'Name' in field list is ambiguous"
        assert "your MySQL server version" in session.execute("SELEC 1").error
        assert session.execute("SELECT 'int(11)'").rows == [("int(11)",)]
    assert mariadb.mysql_error_message("Unknown column 'x' in 'ON'") == "Unknown column 'x' in 'on clause'"


def test_all_golds_but_the_19_that_mysql_refuses_earn_one(mysql: DatabaseServer, upstream: Path) -> None:
    items = read_items(upstream / "intercode/ic_spider_dev.json")
    failing = []
    with closing(GoldQueries(mysql)) as gold_queries, closing(SqlSession(mysql)) as session:
        for number, item in enumerate(items):
            session.use(item.database)
            if reward(session.execute(item.gold_query).rows, gold_queries.rows(item)) != 1.0:
                failing.append(number)
    assert (len(items), failing) == (1034, json.loads((DATA / "gold_fails.json").read_text()))


def rows_of(server: DatabaseServer, asked: list[Task]) -> str:
    with closing(GoldQueries(server)) as golds:
        return fingerprint(golds, asked)


def test_gold_rows_are_the_same_in_every_pass_and_server(
    mysql: DatabaseServer, own_server, dev_tasks: list[Task]
) -> None:
    first = rows_of(mysql, dev_tasks)
    assert rows_of(mysql, dev_tasks) == first
    assert rows_of(own_server(), dev_tasks) == first


def test_gold_rows_are_the_same_after_500_hostile_statements(
    mysql: DatabaseServer, own_server, dev_tasks: list[Task]
) -> None:
    server = own_server()
    first = rows_of(server, dev_tasks)
    asked = 0
    with closing(SqlSession(server)) as session:
        for database in server.databases():
            session.use(database)
            tables = [name for (name,) in session.execute("SHOW TABLES").rows or ()]
            for table in (tables * 3)[:3]:
                asked += sum(1 for statement in HOSTILE if session.execute(statement.format(table=table)))
    assert asked >= 500
    assert rows_of(server, dev_tasks) == first


def test_gold_rows_of_mariadb_are_not_taken_for_those_of_mysql(
    mysql: DatabaseServer, other: DatabaseServer, dump: Path
) -> None:
    """On the template tasks, whose rows come in one order each time also on MariaDB."""
    asked = list(template_tasks(dump, 90))
    mariadbs = rows_of(other, asked)
    assert rows_of(other, asked) == mariadbs
    assert rows_of(mysql, asked) != mariadbs
