"""Expert files: the kit's own and ETO's format, filters that count, and errors that name file, key and fix."""

import json
from pathlib import Path

import pytest
from envs import setups
from envs.setups import write

from coevolve.chat.prompts import parse_action
from coevolve.config.loading import load_suite
from coevolve.config.suite import quirks
from coevolve.envs.base import Setup
from coevolve.envs.experts import read_eto
from coevolve.envs.sciworld import domain
from coevolve.envs.sciworld.config import ExpertSource
from coevolve.envs.sciworld.domain import task_of_id
from coevolve.envs.sciworld.tasks import DATA, listed, task_of
from coevolve.errors import UserError
from coevolve.records.episodes import Message, StopReason, Trajectory, Turn
from coevolve.records.pairs import DropReason
from coevolve.storage import jsonl

SUITE = load_suite(Path(__file__).parents[3] / "configs/suites/smoke.yaml")
ANIMAL = task_of("find-animal", 218, "train")
BOIL = task_of("boil", 3, "train")


SAID = (
    "You are a helpful assistant. Answer with Thought and Action.",
    "OK",
    "Your task is to find a(n) animal.",
    "Thought: go\nAction: teleport to outside",
    "Observation: You teleport to the outside.",
    "Thought: done\nAction: focus on dove egg",
)


def item(identity="11_218", said=SAID, **more):
    return setups.eto_item(identity, *said, **more)


def source(path, form="eto", min_reward=0.0):
    return ExpertSource(format=form, min_reward=min_reward, **setups.source(path))


def read(stated, wanted):
    section = SUITE.envs["sciworld"].model_copy(update={"experts": stated})
    return domain.experts(Setup(section, "envs.sciworld", SUITE.protocol, quirks(SUITE)), wanted)


def test_etos_format_becomes_a_trajectory(tmp_path):
    (found,) = read_eto(write(tmp_path / "eto.json", [item()]), task_of_id, parse_action)
    roles = ("user", "assistant", "user")
    assert found == Trajectory(
        task=ANIMAL,
        agent="expert",
        protocol="paper",
        prompt=tuple(Message(role=role, content=text) for role, text in zip(roles, SAID[:3], strict=True)),
        turns=(
            Turn(text=SAID[3], action="teleport to outside", observation="You teleport to the outside."),
            Turn(text=SAID[5], action="focus on dove egg", observation=""),
        ),
        reward=1.0,
        raw_score=1.0,
        stop=StopReason.DONE,
    )


def test_every_id_of_etos_training_list_is_understood(tmp_path):
    numbers = json.loads((DATA / "eto/numbers.json").read_text(encoding="utf-8"))
    pairs = json.loads((DATA / "eto/train.json").read_text(encoding="utf-8"))
    path = write(tmp_path / "eto.json", [item(f"{numbers[old]}_{variation}") for old, variation in pairs])
    found = read(source(path), listed("eto", "train"))
    assert len(found.trajectories) == 1483
    assert found.drops == ()


def test_what_is_not_used_is_counted(tmp_path):
    low, other, twice = item("0_3", reward=0.5), item("0_4"), item()
    silent = item("1_2", SAID[:3])
    wanted = [ANIMAL, BOIL, task_of("change-the-state-of-matter-of", 2, "train")]
    path = write(tmp_path / "eto.json", [item(), low, other, twice, silent])
    found = read(source(path, min_reward=0.7), wanted)
    assert [trajectory.task for trajectory in found.trajectories] == [ANIMAL]
    assert [(drop.task_id, drop.reason) for drop in found.drops] == [
        ("sciworld/boil/3", DropReason.LOW_REWARD),
        ("sciworld/boil/4", DropReason.NOT_IN_SPLIT),
        ("sciworld/find-animal/218", DropReason.DUPLICATE),
        ("sciworld/change-the-state-of-matter-of/2", DropReason.EMPTY),
        ("sciworld/boil/3", DropReason.MISSING_EXPERT),
        ("sciworld/change-the-state-of-matter-of/2", DropReason.MISSING_EXPERT),
    ]


def test_the_committed_gold_file_in_the_order_of_the_tasks():
    tasks = [task_of("find-plant", 3, "train"), task_of("find-animal", 1, "train")]
    found = read(source(DATA / "gold.jsonl", "gold"), tasks)
    assert [trajectory.task for trajectory in found.trajectories] == tasks
    assert len(found.drops) == len(jsonl.read(DATA / "gold.jsonl", Trajectory)) - 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (json.dumps([item()])[:-40], "Invalid JSON"),
        ({"id": "11_218"}, "valid array"),
        ([{"id": "11_218"}], "0.conversations"),
        ([item() | {"conversations": [{"from": "robot", "value": "x"}]}], "0.conversations.0.from"),
        ([item() | {"conversations": item()["conversations"][1:]}], "0.conversations"),
        ([item(), item("99_0")], "item 1: id `99_0`"),
        ([item("4116")], "item 0: id `4116`"),
        ([item(reward=1.5)], "0.reward"),
    ],
)
def test_malformed_files_name_file_key_and_fix(tmp_path, content, words):
    path = write(tmp_path / "eto.json", content)
    with pytest.raises(UserError) as caught:
        read_eto(path, task_of_id, parse_action)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)
    assert "fetch" in str(caught.value)


def test_a_changed_file_and_a_missing_one_name_the_key(tmp_path):
    path = write(tmp_path / "eto.json", [item()])
    stated = source(path)
    write(path, [item(), item()])
    with pytest.raises(UserError, match=r"envs\.sciworld\.experts\.sha256"):
        read(stated, [ANIMAL])
    path.unlink()
    with pytest.raises(UserError, match=r"envs\.sciworld\.experts\.path"):
        read(stated, [ANIMAL])
