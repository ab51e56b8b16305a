"""Questions made by rule from what the tables of a dump hold, in rising difficulty, and an expert that answers them.

They are for policies of a million parameters: one table each, named as it is, with few columns and a short answer.
Most answers have several rows, so that a wrong column order or condition earns a part of the reward.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from coevolve.chat.prompts import write_action
from coevolve.envs.intercode_sql.dump import NUMERIC, TEXT, Table, Value, tables
from coevolve.errors import UserError
from coevolve.types import Task

#: The environment shows 350 characters of a table's description: about seven columns.
MOST_COLUMNS = 7
ANSWER_ROWS = range(3, 16)
ANSWER_CHARACTERS = 200
MOST_GROUPS = 15
VALUE_CHARACTERS = 20
#: One question in so many of each kind is for evaluation.
TEST_EVERY = 5
#: Values of a column that conditions are made with.
VALUES = 3
_PLAIN = re.compile(r"[A-Za-z]\w*")
#: What the dump calls a table and MySQL reserves.
_RESERVED = frozenset({"show"})

Drafts = Iterator[tuple[str, str]]


def tasks(dump: Path, per_kind: int, databases: Sequence[str] | None = None) -> tuple[Task, ...]:
    """At most `per_kind` tasks of each kind over `databases` (None: all), tables in turn; a fifth is of split `test`.

    A task keeps its id, its question and its split whatever the arguments are.
    """
    usable = [table for table in tables(dump) if len(table.columns) <= MOST_COLUMNS and table.name not in _RESERVED]
    known = dict.fromkeys(table.database for table in usable)
    wanted = known if databases is None else databases
    if unknown := [name for name in wanted if name not in known]:
        raise UserError(f"key `items.databases`: unknown database `{unknown[0]}`; known are {', '.join(known)}.")
    found: list[Task] = []
    for kind in KINDS:
        found += islice((task for task in _tasks(kind, usable) if task.data["database"] in wanted), per_kind)
    return tuple(found)


def solution(task: Task) -> tuple[str, ...]:
    """What the scripted expert says, turn by turn: it looks at the tables, then at the right one, asks and submits."""
    gold = str(task.data["gold"])
    table = gold.partition(" FROM ")[2].split()[0]
    return (
        say("SHOW TABLES", "I look at the tables."),
        say(f"DESCRIBE {table}", f"I look at {table}."),
        say(gold, "I ask for the answer."),
        write_action("submit", "That is the answer."),
    )


def say(statement: str, thought: str = "") -> str:
    """What a policy says to run `statement`."""
    return write_action(f"\n```sql\n{statement}\n```", thought)


def _tasks(kind: str, usable: list[Table]) -> Iterator[Task]:
    for number, (database, question, gold) in enumerate(_in_turn(kind, usable)):
        yield Task(
            env="intercode_sql",
            task_id=f"intercode_sql/templates/{kind}/{number}",
            split="test" if number % TEST_EVERY == TEST_EVERY - 1 else "train",
            kind=kind,
            data={"database": database, "gold": gold, "question": question},
        )


def _in_turn(kind: str, usable: list[Table]) -> list[tuple[str, str, str]]:
    """All drafts of a kind: one of each table, another of each, and so on, each round in an order fixed by hashing."""
    placed = []
    for table in usable:
        drafts = [(table.database, question, gold) for question, gold in KINDS[kind](table)]
        placed += [(turn, _hash(*draft), draft) for turn, draft in enumerate(sorted(drafts, key=lambda d: _hash(*d)))]
    return [draft for _, _, draft in sorted(placed)]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()


def _list(table: Table) -> Drafts:
    for column in _listable(table):
        yield f"List the {column} of all rows in {table.name}.", f"SELECT {column} FROM {table.name}"


def _extreme(table: Table) -> Drafts:
    for column in _measures(table):
        for word, function in (("largest", "MAX"), ("smallest", "MIN"), ("average", "AVG")):
            yield f"What is the {word} {column} in {table.name}?", f"SELECT {function}({column}) FROM {table.name}"


def _count(table: Table) -> Drafts:
    for words, condition in _conditions(table):
        yield (
            f"How many rows in {table.name} have {words}?",
            f"SELECT COUNT(*) FROM {table.name} WHERE {condition}",
        )


def _group(table: Table) -> Drafts:
    for column in _categories(table):
        yield f"List the different {column} in {table.name}.", f"SELECT DISTINCT {column} FROM {table.name}"
        yield (
            f"How many rows in {table.name} does each {column} have?",
            f"SELECT {column}, COUNT(*) FROM {table.name} GROUP BY {column}",
        )


def _order(table: Table) -> Drafts:
    # Only columns without equal values: the order of equal rows would be the server's own.
    keys = [column for column in _plain(table, NUMERIC | TEXT) if len(set(table.values(column))) == len(table.rows)]
    for column in _listable(table):
        for key in keys:
            for word, direction in (("ascending", ""), ("descending", " DESC")) if key != column else ():
                yield (
                    f"List the {column} of all rows in {table.name} by {key}, {word}.",
                    f"SELECT {column} FROM {table.name} ORDER BY {key}{direction}",
                )


def _filter(table: Table) -> Drafts:
    for column in _listable(table):
        for words, condition in _conditions(table, without=column):
            yield (
                f"List the {column} of the rows in {table.name} with {words}.",
                f"SELECT {column} FROM {table.name} WHERE {condition}",
            )


KINDS: dict[str, Callable[[Table], Drafts]] = {
    "list": _list,
    "extreme": _extreme,
    "group": _group,
    "count": _count,
    "order": _order,
    "filter": _filter,
}


def _conditions(table: Table, without: str = "") -> Drafts:
    """Conditions in words and in SQL, on columns other than `without`, that some rows meet and others do not."""
    for column in _measures(table):
        numbers = sorted({_number(value) for value in table.values(column)})
        for number in numbers[1:-1][:: max(1, len(numbers) // VALUES)] if column != without else ():
            yield f"{column} above {number}", f"{column} > {number}"
            yield f"{column} below {number}", f"{column} < {number}"
    for column in _categories(table):
        common = Counter(table.values(column)).most_common(VALUES) if column != without else []
        for value, _ in common:
            if isinstance(value, str) and len(value) <= VALUE_CHARACTERS and value.isalnum():
                yield f"{column} '{value}'", f"{column} = '{value}'"


def _listable(table: Table) -> list[str]:
    """Columns that are an answer: several rows, none empty, not too long."""
    fits = len(table.rows) in ANSWER_ROWS
    columns = [column for column in _plain(table, NUMERIC | TEXT) if fits]
    return [column for column in columns if len(str([(v,) for v in table.values(column)])) <= ANSWER_CHARACTERS]


def _measures(table: Table) -> list[str]:
    """Columns of numbers, but for those that number the rows."""
    columns = [column for column in _plain(table, NUMERIC) if not column.lower().endswith("id")]
    return [column for column in columns if len(set(table.values(column))) in range(3, 10_000)]


def _categories(table: Table) -> list[str]:
    """Columns with few values, some of which come again."""
    columns = _plain(table, NUMERIC | TEXT)
    return [column for column in columns if 2 <= len(set(table.values(column))) < min(len(table.rows), MOST_GROUPS)]


def _plain(table: Table, types: frozenset[str]) -> list[str]:
    """Columns of these types that need no quotes and have no NULL."""
    named = [name for name, kind in table.columns.items() if kind in types and _PLAIN.fullmatch(name)]
    return [name for name in named if None not in table.values(name)]


def _number(value: Value) -> float:
    """A number as it is written: without a point where it is whole."""
    number = float(value or 0)
    return int(number) if number.is_integer() else number
