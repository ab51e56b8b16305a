"""Records made on our own server are repeated by it, and each way of leaving a record is found and named."""

from contextlib import closing

import pytest
from envs.intercode_sql.difference_classes import CLASSES
from envs.intercode_sql.recorded_comparison import compare
from envs.setups import write

from coevolve.envs.intercode_sql.recorded_runs import RecordedEpisode, read
from coevolve.envs.intercode_sql.server import DatabaseServer
from coevolve.envs.intercode_sql.session import SqlSession
from coevolve.errors import UserError

ERROR = "Error executing query: "
COUNTRY = {"db": "world_1", "gold": "SELECT Name FROM country ORDER BY Name LIMIT 3", "query": "Which come first?"}
PETS = {"db": "pets_1", "gold": "SELECT PetType FROM pets", "query": "Which kinds of pet are there?"}
LONG = "SELECT Name FROM city WHERE ID <= 40 ORDER BY ID"


@pytest.fixture
def recorded(tmp_path):
    """The episodes of a record with one episode an item, each a list of (action, observation, reward)."""

    def recorded(items: list[dict[str, str]], *episodes: list[tuple], react: bool = False) -> list[RecordedEpisode]:
        record = {}
        for number, (item, turns) in enumerate(zip(items, episodes, strict=True)):
            columns = map(list, zip(*turns, strict=True))
            history = dict(zip(("actions", "observations", "rewards"), columns, strict=True))
            if react:
                history["thoughts"] = ["I think."] * len(turns)
            record[str(number)] = {"task_id": number, "query": item["query"], "turn_history": history}
        return read(write(tmp_path / "run.json", record), write(tmp_path / "dev.json", items))

    return recorded


def asked(server: DatabaseServer, database: str, statement: str) -> str:
    """What upstream's loop prints of the server's answer."""
    with closing(SqlSession(server)) as session:
        session.use(database)
        answer = session.execute(statement)
    return f"{ERROR}{answer.error}" if answer.error else str(answer.rows)


def test_a_record_of_this_server_is_repeated_turn_by_turn(server, recorded):
    statements = ["SHOW TABLES", "DESCRIBE country", "SELECT nothing FROM country", COUNTRY["gold"]]
    turns = [
        (statement, asked(server, "world_1", statement), float(statement == COUNTRY["gold"]))
        for statement in statements
    ]
    refused = ("no statement at all", "Please write a statement.", 0.0)
    report = compare(server, recorded([COUNTRY], [refused, *turns]))
    assert (report.statements, report.rewards) == (4, 4)
    assert (report.differences, report.equal_rewards, report.equal_overlaps) == ([], 4, 4)


def test_a_react_record_is_read_as_its_loop_wrote_it(server, recorded):
    rows = asked(server, "world_1", LONG).removeprefix("[").removesuffix("]").split(", (")
    turns = [
        (f"execute[{LONG}; SELECT 2]\nObservation: [and so on", "[" + ", (".join(rows[:25]) + "]", 0),
        ("I have nothing to execute.", f"{ERROR}nothing was sent", 0),
        ("execute[SELECT a]", asked(server, "world_1", "SELECT a")[:350], 0),
        (f"execute[{COUNTRY['gold']}]", asked(server, "world_1", COUNTRY["gold"]), 0),
        ("submit", asked(server, "world_1", COUNTRY["gold"]), 1.0),
    ]
    report = compare(server, recorded([COUNTRY], turns, react=True))
    assert (report.statements, report.rewards, report.equal_rewards, report.differences) == (3, 1, 1, [])


CATALOGUE = "SELECT COLUMN_NAME FROM INFORMATION_SCHEMA.COLUMNS WHERE TABLE_NAME = 'has_pet' ORDER BY ORDINAL_POSITION"
LEFT = [
    ("catalogue", CATALOGUE, "[('PetID',), ('StuID',)]"),
    ("order", "SELECT PetType FROM pets ORDER BY PetID", "[('dog',), ('cat',), ('dog',)]"),
    ("tie", "SELECT Code FROM country LIMIT 1", "[('ZWE',)]"),
    ("wording", "SELECT nothing FROM pets", f"{ERROR}There is no column nothing"),
    ("leftover", "SELECT name FROM owners", "[('Ann',)]"),
    ("leftover", "SELECT name FROM owners", f"{ERROR}Unknown column 'name' in 'field list'"),
    ("leftover", "SELECT owner_id FROM pets", "[]"),
    ("leftover", "SHOW TABLES", "[('has_pet',), ('owners',), ('pets',), ('student',)]"),
    ("refused", "ALTER TABLE pets ADD COLUMN owner_id INT", "None"),
    ("surroundings", "SELECT VERSION()", "[('8.0.33',)]"),
    # An earlier episode had taken upstream's check of GROUP BY away.
    ("settings", "SELECT PetType, COUNT(*) FROM pets", "[('cat', 3)]"),
    ("other", "SELECT PetType FROM pets ORDER BY PetID", "[('cat',), ('dog',), ('cow',)]"),
]


def test_each_class_of_difference_is_named(server, recorded):
    assert {kind for kind, _, _ in LEFT} == {*CLASSES, "other"}
    for kind, statement, observation in LEFT:
        item = PETS | {"db": "world_1" if "country" in statement else "pets_1", "gold": "SELECT 1"}
        report = compare(server, recorded([item], [(statement, observation, 0.0)]))
        assert report.by_class == {kind: 1}, report.differences


def test_rewards_of_2023_did_not_look_at_the_order(server, recorded):
    other_way = "SELECT Name FROM (SELECT Name FROM country ORDER BY Name LIMIT 3) a ORDER BY Name DESC"
    turns = [(other_way, asked(server, "world_1", other_way), 1.0)]
    report = compare(server, recorded([COUNTRY], turns))
    assert (report.rewards, report.equal_rewards, report.equal_overlaps) == (1, 0, 1)
    report = compare(server, recorded([COUNTRY], [(other_way, turns[0][1], 0.5)]))
    assert (report.equal_rewards, report.equal_overlaps) == (0, 0)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "AttributeError"),
        ('{"0": {"task_id": 0}}', "KeyError"),
        ('{"0": {"task_id": 7, "query": "Which?"}}', "IndexError"),
        ('{"0": {"task_id": 0, "query": "Which?"}}', "item 0 has another question"),
        ('{"0": {"task_id": 0, "query": "Which kinds of pet are there?", "turn_history": {"actions": 1}}}', "KeyError"),
    ],
)
def test_a_file_that_is_no_record_is_one_sentence(tmp_path, content, complaint):
    path = write(tmp_path / "run.json", content)
    with pytest.raises(UserError) as error:
        read(path, write(tmp_path / "dev.json", [PETS]))
    assert str(error.value).startswith(f"{path}: ") and complaint in str(error.value)
    assert "\n" not in str(error.value)
