"""Gold rows and the fingerprint over them."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from envs.intercode_sql.sections import question

from coevolve.envs.base import EnvError
from coevolve.envs.intercode_sql.gold_queries import GoldQueries, fingerprint
from coevolve.envs.intercode_sql.tasks import item_of

TASKS = [
    question("SELECT COUNT(*) FROM city"),
    question("SELECT ContId FROM continents ORDER BY ContId", "car_1"),
    question("no SQL"),
]


@pytest.fixture
def golds(server):
    with contextlib.closing(GoldQueries(server)) as golds:
        yield golds


def test_gold_rows_are_those_of_the_items_database(golds):
    assert golds.rows(item_of(TASKS[0])) == [(4079,)]
    assert golds.rows(item_of(TASKS[1])) == [(1,), (2,), (3,), (4,), (5,)]


@pytest.mark.parametrize("gold", ["SELECT * FROM towns", "", "SET @x = 1", "DELETE FROM city"])
def test_a_gold_that_gives_no_rows_is_empty(golds, gold):
    assert golds.rows(item_of(question(gold))) == []


def test_a_gold_that_is_cut_short_is_not_taken_for_an_empty_one(own_server):
    slow = item_of(question("SELECT COUNT(*) FROM city a, city b, city c WHERE a.ID + b.ID > c.ID"))
    with (
        contextlib.closing(GoldQueries(own_server(statement_seconds=0.2))) as golds,
        pytest.raises(EnvError, match="cut short"),
    ):
        golds.rows(slow)


def test_golds_may_be_asked_from_many_threads_and_each_once(golds):
    once = item_of(question("SELECT CONNECTION_ID(), UUID()"))
    first = golds.rows(once)
    databases = ("world_1", "car_1") * 40
    items = [item_of(question(f"SELECT {n // 2}, DATABASE()", database)) for n, database in enumerate(databases)] * 3
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(golds.rows, items))
    assert found == [[(number // 2 % 40, item.database)] for number, item in enumerate(items)]
    assert golds.rows(once) is first


def test_the_fingerprint_is_of_rows_statements_databases_and_order(server, golds):
    first = fingerprint(golds, TASKS)
    assert len(first) == 16
    with contextlib.closing(GoldQueries(server)) as others:
        assert fingerprint(others, TASKS) == first
    countries = question("SELECT COUNT(*) FROM country")
    changed = [TASKS[::-1], TASKS[:2], [*TASKS[:2], question("none")], [countries, *TASKS[1:]]]
    assert len({first, *(fingerprint(golds, tasks) for tasks in changed)}) == 5
