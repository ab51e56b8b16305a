"""Which questions a suite asks: template questions, Spider's items divided by database, IPR's lists."""

import hashlib
import json
import zipfile

import pytest
from envs.intercode_sql.sections import ALL, section
from envs.setups import source, write
from pydantic import ValidationError

from coevolve.envs.intercode_sql.ipr_archives import EXPERTS, TEST, TRAIN, unpack
from coevolve.envs.intercode_sql.tasks import DATA, questions, select
from coevolve.errors import UserError
from coevolve.records.pairs import DropReason
from coevolve.storage import files

SOME = {"kinds": None, "sft": 5, "explore": 4, "evaluate": 3, "explore_sft": False}


def config(dump, asked, tasks=SOME):
    return section(dump, asked, tasks=tasks)


def invented(number, databases=20):
    """So many items in InterCode's format, in turn over so many databases."""
    plain = {"hardness": "easy", "db_tables": {}}
    return [
        {"db": f"db_{i % databases:03}", "gold": f"SELECT {i}", "query": f"What is {i}?", **plain}
        for i in range(number)
    ]


def ids(tasks):
    return [task.task_id for task in tasks]


def numbers(tasks):
    return [int(task.task_id.rpartition("/")[2]) for task in tasks]


def test_template_questions_are_taken_kind_by_kind(dump):
    wanted = config(dump, {"source": "templates", "per_kind": 30})
    selection = select(wanted, "remove")
    assert len(questions(wanted)[0]) == 180
    assert (len(selection.sft), len(selection.explore), len(selection.evaluate)) == (30, 24, 18)
    ordering = tuple(task for task in selection.sft if task.kind == "order")
    assert numbers(ordering) == [0, 1, 2, 3, 5]
    everything = ids((*selection.sft, *selection.explore, *selection.evaluate))
    assert len(everything) == len(set(everything))
    assert {task.split for task in (*selection.sft, *selection.explore)} == {"train"}
    assert {task.split for task in selection.evaluate} == {"test"}
    assert (selection.overlap, selection.drops) == ((), ())


def test_iprs_lists_are_followed(dump, tmp_path):
    test, train = write(tmp_path / "test.json", invented(1015)), write(tmp_path / "train.json", invented(4555, 146))
    lists = {"source": "ipr", "test": source(test), "train": source(train)}
    selection = select(config(dump, lists, tasks=ALL), "remove")
    assert numbers(selection.sft) == numbers(selection.explore)
    assert numbers(selection.sft) == json.loads((DATA / "ipr/train_indices.json").read_text())
    assert (len(selection.sft), selection.sft[0].task_id) == (1500, "intercode_sql/ipr/1287")
    assert numbers(selection.evaluate) == list(range(200))
    assert {task.split for task in selection.evaluate} == {"test"}
    assert not {task.task_id for task in selection.evaluate} & {task.task_id for task in selection.sft}
    write(train, [])
    with pytest.raises(UserError, match=r"items\.train\.sha256"):
        select(config(dump, lists, tasks=ALL), "remove")


@pytest.mark.parametrize(
    ("name", "sha256"),
    [
        ("ipr/train_indices", "7c3f184782dd9457a4630015c16f6d130b2cae7f7e1bc350a4930dc108d15aa4"),
        ("ipr/test_indices", "050029a81b691389bb405be74dd4d2c17838c422c8de0972a1fb21e62b9b13cc"),
        ("gold_fails", "cbfe2f316da8c0ed4f3cf7719cf89d5f4c1a400ba0171154d4c602310644c5c3"),
    ],
)
def test_the_lists_are_those_of_upstream(name, sha256):
    """The numbers of IPR's lists at 93335a3, and of the items whose gold statement MySQL 8 refuses."""
    numbers = json.loads((DATA / f"{name}.json").read_text())
    assert hashlib.sha256(json.dumps(numbers).encode()).hexdigest() == sha256


def test_spiders_items_give_200_questions_over_five_databases(dump, upstream):
    dev = source(upstream / "intercode/ic_spider_dev.json")
    selection = select(config(dump, {"source": "dev", "dev": dev}, tasks=ALL), "remove")
    assert (len(selection.explore), len(selection.evaluate), len(selection.drops)) == (815, 200, 19)
    evaluated = {task.data["database"] for task in selection.evaluate}
    assert evaluated == {"battle_death", "car_1", "concert_singer", "course_teach", "museum_visit"}
    assert not evaluated & {task.data["database"] for task in selection.explore}
    assert {task.kind for task in selection.evaluate} == {"easy", "medium", "hard", "extra"}
    assert numbers(selection.drops) == json.loads((DATA / "gold_fails.json").read_text())
    assert {drop.reason for drop in selection.drops} == {DropReason.GOLD_FAILS}
    assert selection.explore[0].data.keys() == {"database", "gold", "question"}
    questions = {(task.data["database"], task.data["gold"]) for task in selection.evaluate}
    assert not questions & {(task.data["database"], task.data["gold"]) for task in selection.explore}


@pytest.mark.parametrize(
    ("test", "train", "words"),
    [
        (invented(1014), invented(4555), "`items.test`: 1014 items are too few"),
        (invented(1015), invented(4539), "`items.train`: 4539 items are too few"),
        (invented(1015), [{"db": "a", "gold": "b"}], r"train\.json: key `0\.query`"),
        ({"db": "a"}, invented(4555), r"test\.json: key `\(top level\)`"),
        ("[{", invented(4555), r"test\.json: .*Invalid JSON"),
    ],
)
def test_files_that_hold_something_else_are_one_sentence(dump, tmp_path, test, train, words):
    lists = {"test": write(tmp_path / "test.json", test), "train": write(tmp_path / "train.json", train)}
    wanted = {"source": "ipr", **{name: source(path) for name, path in lists.items()}}
    with pytest.raises(UserError, match=words):
        select(config(dump, wanted), "remove")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"source": "templates"}, "source `templates` needs `per_kind`"),
        ({"source": "ipr", "train": {"path": "a", "sha256": "b"}}, "source `ipr` needs `test`"),
        ({"source": "dev", "dev": {"path": "a", "sha256": "b"}, "databases": ["car_1"]}, "`dev` takes no `databases`"),
    ],
)
def test_a_source_says_what_it_needs_and_what_it_does_not_read(dump, asked, words):
    with pytest.raises(ValidationError, match=words):
        config(dump, asked)


def archives(folder):
    data, trajectories = folder / "data.zip", folder / "trajectories.zip"
    with zipfile.ZipFile(data, "w") as archive:
        for name in (TRAIN, TEST):
            archive.writestr(f"inner/{name}", name)
        archive.writestr("docker/all.sql", "SELECT 1;")
        archive.writestr("docker/Dockerfile", "FROM mysql")
    with zipfile.ZipFile(trajectories, "w") as archive:
        archive.writestr(f"data/{EXPERTS}", "[]")
    return [data, trajectories]


def test_the_files_are_found_and_their_hashes_given(tmp_path):
    found = unpack(archives(tmp_path), tmp_path / "out")
    assert sorted(found) == ["all.sql", TEST, TRAIN, EXPERTS]
    assert {path.name: files.sha256(path) for path in (tmp_path / "out").iterdir()} == found
    assert (tmp_path / "out" / TRAIN).read_text() == TRAIN


def test_an_archive_alone_and_a_broken_one_are_named(tmp_path):
    data, trajectories = archives(tmp_path)
    with pytest.raises(UserError, match=rf"data\.zip: no {EXPERTS} inside"):
        unpack([data], tmp_path / "out")
    trajectories.write_bytes(trajectories.read_bytes()[:50])
    with pytest.raises(UserError, match=r"trajectories\.zip: not readable as a zip file"):
        unpack([data, trajectories], tmp_path / "out")
    assert not (tmp_path / "out").exists()
