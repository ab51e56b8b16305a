"""Template questions over the tables of a dump, and a scripted expert that answers them.

The questions are for policies of a million parameters: each concerns one table, which it names, with few columns and a
short answer. Most answers have several rows, so that a partly wrong query earns a part of the reward.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from coevolve.chat.prompts import write_action
from coevolve.envs.intercode_sql.dump import NUMERIC, TEXT, DumpTable, Value, tables
from coevolve.errors import UserError
from coevolve.records.episodes import Task

#: The environment shows 350 characters of a table's description, which is about seven columns.
MAX_COLUMNS = 7
ANSWER_ROWS = range(3, 16)
MAX_ANSWER_CHARACTERS = 200
MAX_CATEGORIES = 15
MAX_VALUE_CHARACTERS = 20
#: Of each kind, every fifth question is for evaluation.
TEST_EVERY = 5
#: Number of a column's values that are used in conditions.
CONDITION_VALUES = 3
_UNQUOTED_NAME = re.compile(r"[A-Za-z]\w*")
#: DumpTable names of the dump that are reserved words of MySQL.
_RESERVED = frozenset({"show"})

#: Pairs of a question and its gold query.
Drafts = Iterator[tuple[str, str]]


def template_tasks(dump: Path, per_kind: int, databases: Sequence[str] | None = None) -> tuple[Task, ...]:
    """At most `per_kind` tasks of each kind over `databases` (None: all), alternating between tables.

    Every fifth task has the split `test`. A task's id, question and split do not depend on the arguments. Raises
    `UserError` for an unknown database.
    """
    usable = [table for table in tables(dump) if len(table.columns) <= MAX_COLUMNS and table.name not in _RESERVED]
    known = dict.fromkeys(table.database for table in usable)
    wanted = known if databases is None else databases
    if unknown := [name for name in wanted if name not in known]:
        raise UserError(f"key `items.databases`: unknown database `{unknown[0]}`; known are {', '.join(known)}.")
    selected: list[Task] = []
    for kind in KINDS:
        selected += islice((task for task in _tasks(kind, usable) if task.data["database"] in wanted), per_kind)
    return tuple(selected)


def expert_turns(task: Task) -> tuple[str, ...]:
    """Texts of the scripted expert's turns: list the tables, describe the right one, query it, submit."""
    gold = str(task.data["gold"])
    table = gold.partition(" FROM ")[2].split()[0]
    return (
        statement_turn("SHOW TABLES", "I look at the tables."),
        statement_turn(f"DESCRIBE {table}", f"I look at {table}."),
        statement_turn(gold, "I ask for the answer."),
        write_action("submit", "That is the answer."),
    )


def statement_turn(statement: str, thought: str = "") -> str:
    """Text of a turn that executes `statement`."""
    return write_action(f"\n```sql\n{statement}\n```", thought)


def _tasks(kind: str, usable: list[DumpTable]) -> Iterator[Task]:
    for number, (database, question, gold) in enumerate(_round_robin(kind, usable)):
        yield Task(
            env="intercode_sql",
            task_id=f"intercode_sql/templates/{kind}/{number}",
            split="test" if number % TEST_EVERY == TEST_EVERY - 1 else "train",
            kind=kind,
            data={"database": database, "gold": gold, "question": question},
        )


def _round_robin(kind: str, usable: list[DumpTable]) -> list[tuple[str, str, str]]:
    """Database, question and gold query of all questions of a kind, in rounds of one question per table.

    Hashes fix the order of a table's questions and of the tables within a round.
    """
    ranked = []
    for table in usable:
        drafts = [(table.database, question, gold) for question, gold in KINDS[kind](table)]
        drafts.sort(key=lambda draft: _hash(*draft))
        ranked += [(round_, _hash(*draft), draft) for round_, draft in enumerate(drafts)]
    return [draft for _, _, draft in sorted(ranked)]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()


def _list_drafts(table: DumpTable) -> Drafts:
    for column in _answer_columns(table):
        yield f"List the {column} of all rows in {table.name}.", f"SELECT {column} FROM {table.name}"


def _aggregate_drafts(table: DumpTable) -> Drafts:
    for column in _numeric_columns(table):
        for word, function in (("largest", "MAX"), ("smallest", "MIN"), ("average", "AVG")):
            yield f"What is the {word} {column} in {table.name}?", f"SELECT {function}({column}) FROM {table.name}"


def _count_drafts(table: DumpTable) -> Drafts:
    for words, condition in _conditions(table):
        yield (
            f"How many rows in {table.name} have {words}?",
            f"SELECT COUNT(*) FROM {table.name} WHERE {condition}",
        )


def _group_drafts(table: DumpTable) -> Drafts:
    for column in _categorical_columns(table):
        yield f"List the different {column} in {table.name}.", f"SELECT DISTINCT {column} FROM {table.name}"
        yield (
            f"How many rows in {table.name} does each {column} have?",
            f"SELECT {column}, COUNT(*) FROM {table.name} GROUP BY {column}",
        )


def _order_drafts(table: DumpTable) -> Drafts:
    # Only columns with distinct values: the order of rows with equal keys would depend on the server.
    keys = [
        column
        for column in _unquoted_columns(table, NUMERIC | TEXT)
        if len(set(table.values(column))) == len(table.rows)
    ]
    for column in _answer_columns(table):
        for key in keys:
            for word, direction in (("ascending", ""), ("descending", " DESC")) if key != column else ():
                yield (
                    f"List the {column} of all rows in {table.name} by {key}, {word}.",
                    f"SELECT {column} FROM {table.name} ORDER BY {key}{direction}",
                )


def _filter_drafts(table: DumpTable) -> Drafts:
    for column in _answer_columns(table):
        for words, condition in _conditions(table, without=column):
            yield (
                f"List the {column} of the rows in {table.name} with {words}.",
                f"SELECT {column} FROM {table.name} WHERE {condition}",
            )


KINDS: dict[str, Callable[[DumpTable], Drafts]] = {
    "list": _list_drafts,
    "extreme": _aggregate_drafts,
    "group": _group_drafts,
    "count": _count_drafts,
    "order": _order_drafts,
    "filter": _filter_drafts,
}


def _conditions(table: DumpTable, without: str = "") -> Drafts:
    """Conditions in words and in SQL, on columns other than `without`, that some but not all rows satisfy."""
    for column in _numeric_columns(table):
        numbers = sorted({_as_written(value) for value in table.values(column)})
        for number in numbers[1:-1][:: max(1, len(numbers) // CONDITION_VALUES)] if column != without else ():
            yield f"{column} above {number}", f"{column} > {number}"
            yield f"{column} below {number}", f"{column} < {number}"
    for column in _categorical_columns(table):
        common = Counter(table.values(column)).most_common(CONDITION_VALUES) if column != without else []
        for value, _ in common:
            if isinstance(value, str) and len(value) <= MAX_VALUE_CHARACTERS and value.isalnum():
                yield f"{column} '{value}'", f"{column} = '{value}'"


def _answer_columns(table: DumpTable) -> list[str]:
    """Columns that can be an answer: several rows, without NULL, not too long."""
    if len(table.rows) not in ANSWER_ROWS:
        return []
    columns = _unquoted_columns(table, NUMERIC | TEXT)
    return [column for column in columns if len(str([(v,) for v in table.values(column)])) <= MAX_ANSWER_CHARACTERS]


def _numeric_columns(table: DumpTable) -> list[str]:
    """Numeric columns with at least three values, without ids."""
    columns = [column for column in _unquoted_columns(table, NUMERIC) if not column.lower().endswith("id")]
    return [column for column in columns if len(set(table.values(column))) in range(3, 10_000)]


def _categorical_columns(table: DumpTable) -> list[str]:
    """Columns with few distinct values, some of which repeat."""
    columns = _unquoted_columns(table, NUMERIC | TEXT)
    return [column for column in columns if 2 <= len(set(table.values(column))) < min(len(table.rows), MAX_CATEGORIES)]


def _unquoted_columns(table: DumpTable, types: frozenset[str]) -> list[str]:
    """Columns of these types whose name needs no quotes, without NULL values."""
    names = [name for name, kind in table.columns.items() if kind in types and _UNQUOTED_NAME.fullmatch(name)]
    return [name for name in names if None not in table.values(name)]


def _as_written(value: Value) -> float:
    """A number as written in SQL: whole numbers without a decimal point."""
    number = float(value or 0)
    return int(number) if number.is_integer() else number
