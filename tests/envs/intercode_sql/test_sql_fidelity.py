"""What MySQL answered in 2023 is what the kit's server answers: recorded runs and gold statements of InterCode."""

import json
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from builders import task
from envs.intercode_sql.recorded_comparison import Comparison, compare

from coevolve.envs.intercode_sql.gold_queries import GoldQueries, fingerprint
from coevolve.envs.intercode_sql.recorded_runs import read
from coevolve.envs.intercode_sql.reward import reward
from coevolve.envs.intercode_sql.server import DatabaseServer
from coevolve.envs.intercode_sql.session import SqlSession
from coevolve.envs.intercode_sql.tasks import DATA, SqlItem
from coevolve.records.episodes import Task
from coevolve.storage import jsonl

DEV = "intercode/ic_spider_dev.json"
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


@pytest.fixture(scope="module")
def dev_tasks(upstream):
    return [
        task(
            f"intercode_sql/dev/{number}",
            env="intercode_sql",
            data=item.model_dump(),
        )
        for number, item in enumerate(jsonl.read_items(upstream / DEV, SqlItem))
    ]


def compared(server: DatabaseServer, upstream: Path, name: str, limit: int | None = None) -> Comparison:
    return compare(server, read(upstream / "intercode" / name, upstream / DEV)[:limit])


@pytest.mark.parametrize("name", [GPT4, GPT35])
def test_the_first_items_are_answered_as_in_2023(server, upstream, name):
    report = compared(server, upstream, name, SUBSET)
    assert report.statements > 3 * SUBSET
    assert report.stateless_share >= 0.99
    assert report.equal_overlaps >= 0.99 * report.rewards
    assert report.by_class["other"] == 0


@pytest.mark.slow
def test_both_recorded_runs_are_answered_as_in_2023(server, upstream):
    """Of GPT-3.5's statements one in twenty met tables that upstream's server had been left with, and no dump has.

    Rows of information_schema come in an order that MySQL draws when it starts (up to 21 of 31 such statements).
    """
    reports = {name: compared(server, upstream, name) for name in STATEMENTS}
    assert {name: report.statements for name, report in reports.items()} == STATEMENTS
    different = sum((report.by_class for report in reports.values()), Counter())
    assert different["catalogue"] <= 25
    assert different.total() - different["catalogue"] <= 0.03 * sum(STATEMENTS.values())
    assert reports[GPT4].identical_share >= 0.98 and reports[GPT35].identical_share >= 0.95
    for report in reports.values():
        assert report.stateless_share >= 0.99
        assert report.equal_overlaps >= 0.995 * report.rewards
        assert report.by_class["other"] == 0


@pytest.mark.slow
def test_the_past_of_a_server_does_not_show(server, upstream):
    assert compared(server, upstream, GPT4) == compared(server, upstream, GPT4)


def test_all_golds_but_the_19_that_mysql_refuses_earn_one(server, upstream):
    items = jsonl.read_items(upstream / DEV, SqlItem)
    failing = []
    with closing(GoldQueries(server)) as gold_queries, closing(SqlSession(server)) as session:
        for number, item in enumerate(items):
            session.use(item.database)
            if reward(session.execute(item.gold).rows, gold_queries.rows(item)) != 1.0:
                failing.append(number)
    assert (len(items), failing) == (1034, json.loads((DATA / "gold_fails.json").read_text()))


def rows_of(server: DatabaseServer, asked: list[Task]) -> str:
    with closing(GoldQueries(server)) as golds:
        return fingerprint(golds, asked)


def test_gold_rows_are_the_same_in_every_pass_and_server_and_after_500_hostile_statements(
    server: DatabaseServer, own_server, dev_tasks: list[Task]
) -> None:
    other, first = own_server(), rows_of(server, dev_tasks)
    assert rows_of(server, dev_tasks) == rows_of(other, dev_tasks) == first
    asked = 0
    with closing(SqlSession(other)) as session:
        for database in other.databases():
            session.use(database)
            tables = [name for (name,) in session.execute("SHOW TABLES").rows or ()]
            for table in (tables * 3)[:3]:
                asked += sum(1 for statement in HOSTILE if session.execute(statement.format(table=table)))
    assert asked >= 500
    assert rows_of(other, dev_tasks) == first
