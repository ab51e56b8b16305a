"""Template questions: the dump read right, questions that can be answered and told apart, ids that stay."""

import hashlib
from decimal import Decimal

import pytest

from coevolve.envs.intercode_sql.dump import databases, tables
from coevolve.envs.intercode_sql.question_templates import KINDS, expert_turns, template_tasks
from coevolve.envs.intercode_sql.session import SqlSession
from coevolve.errors import UserError

PER_KIND = 90


@pytest.fixture(scope="module")
def made(dump):
    return template_tasks(dump, PER_KIND)


def rows(session, database, statement):
    session.use(database)
    answer = session.execute(statement)
    assert answer.rows is not None, answer.error
    return answer.rows


@pytest.fixture(scope="module")
def session(server):
    session = SqlSession(server)
    yield session
    session.close()


def plain(value):
    """A value as the dump has it: numbers as numbers, the rest as text."""
    if value is None or isinstance(value, str):
        return value
    return float(value) if isinstance(value, int | float | Decimal) else str(value)


def test_the_dump_is_read_as_the_server_reads_it(dump, session):
    found = tables(dump)
    assert (len(databases(dump)), len(found)) == (20, 77)
    assert {table.database for table in found} == {*databases(dump)} - {"wta_1"}
    for table in found:
        listed = [row[0] for row in rows(session, table.database, "SHOW TABLES")]
        assert table.name in listed
        described = rows(session, table.database, f"DESCRIBE `{table.name}`")
        assert list(table.columns) == [row[0] for row in described]
        held = rows(session, table.database, f"SELECT * FROM `{table.name}`")
        order = {column: kind == "float" for column, kind in table.columns.items()}
        assert sorted(comparable(row, order) for row in table.rows) == sorted(comparable(row, order) for row in held)


def comparable(row, floats):
    """A row as text; a FLOAT is shown with six digits, whatever the dump holds."""
    values = [plain(value) for value in row]
    return [
        f"{v:.5g}" if rough and v is not None else repr(v) for v, rough in zip(values, floats.values(), strict=True)
    ]


def test_each_kind_has_its_number_of_different_questions_in_both_splits(made):
    assert [sum(task.kind == kind for task in made) for kind in KINDS] == [PER_KIND] * len(KINDS)
    assert len({task.task_id for task in made}) == len(made)
    assert len({(task.data["database"], task.data["gold"]) for task in made}) == len(made)
    assert len({(task.data["database"], task.data["question"]) for task in made}) == len(made)
    train, test = ([task for task in made if task.split == split] for split in ("train", "test"))
    assert (len(train), len(test)) == (432, 108)
    assert {task.kind for task in train} == {task.kind for task in test}
    known = {task.data["database"] for task in train}
    assert len(known) >= 17 and {task.data["database"] for task in test} <= known


def test_a_task_stays_what_it_is_when_more_or_some_databases_are_asked_for(dump, made):
    by_id = {task.task_id: task for task in template_tasks(dump, 1000)}
    chosen = template_tasks(dump, 30, ["singer", "pets_1"])
    assert {task.data["database"] for task in chosen} == {"singer", "pets_1"}
    assert all(by_id[task.task_id] == task for task in (*made, *chosen, *template_tasks(dump, 20)))
    digest = hashlib.sha256("\n".join(task.to_json() for task in made).encode()).hexdigest()
    assert digest == "e2c7cd3e22fbfcf68fcafdbc521c6480b306cf0269f3699624219c9cf477bf95"
    question = "List the injured of all rows in death."
    assert made[0].data == {"database": "battle_death", "gold": "SELECT injured FROM death", "question": question}
    assert expert_turns(made[0]) == (
        "Thought: I look at the tables.\nAction: \n```sql\nSHOW TABLES\n```",
        "Thought: I look at death.\nAction: \n```sql\nDESCRIBE death\n```",
        "Thought: I ask for the answer.\nAction: \n```sql\nSELECT injured FROM death\n```",
        "Thought: That is the answer.\nAction: submit",
    )
    with pytest.raises(UserError, match=r"`items\.databases`: unknown database `pets_2`"):
        template_tasks(dump, 30, ["pets_2"])


def test_every_gold_answers_and_most_answers_have_several_rows(made, session):
    sizes = [len(rows(session, str(task.data["database"]), str(task.data["gold"]))) for task in made]
    assert min(sizes) >= 1
    several = [task.kind for task, size in zip(made, sizes, strict=True) if size > 1]
    assert set(several) == {"list", "group", "order", "filter"}
    assert len(several) > len(made) / 2
    for task in made:  # and what the expert sees is shown whole
        for text in expert_turns(task)[:3]:
            statement = text.split("```sql\n")[1].removesuffix("\n```")
            assert len(str(rows(session, str(task.data["database"]), statement))) <= 350, (task, statement)
