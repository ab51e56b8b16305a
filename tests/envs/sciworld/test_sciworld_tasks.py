"""Task lists: ETO's and the official ones, their overlap, and what a selection takes from them."""

import itertools

import pytest

from coevolve.envs.sciworld.config import SciWorldSelection
from coevolve.envs.sciworld.tasks import kinds, kinds_by_number, listed, select, step_limit
from coevolve.errors import UserError
from coevolve.records.pairs import DropReason

ALL = SciWorldSelection(lists="eto", kinds=None, sft=None, explore=None, evaluate=None, explore_sft=True)
SOME = SciWorldSelection(
    lists="official", kinds=["find-plant", "boil"], sft=5, explore=4, evaluate=3, explore_sft=False
)
BOTH = ("seen", "unseen")


def ids(tasks):
    return [task.task_id for task in tasks]


def test_etos_lists_have_the_papers_sizes_and_its_tests_are_the_first_ten_official_ones_of_each_type():
    assert [len(listed("eto", split)) for split in ("train", "seen", "unseen")] == [1483, 194, 211]
    assert len({task.kind for split in ("train", "seen", "unseen") for task in listed("eto", split)}) == 24
    for source, split in itertools.product(("eto", "official"), ("train", "seen", "unseen")):
        assert len(set(ids(listed(source, split)))) == len(listed(source, split))
    official = listed("official", "unseen")
    used = {task.kind for task in listed("eto", "unseen")}
    first = [task for kind in used for task in [t for t in official if t.kind == kind][:10]]
    assert sorted(ids(first)) == sorted(ids(listed("eto", "unseen")))


def test_overlap_is_declared_and_kept_or_removed():
    kept, removed = select(ALL, BOTH, "keep"), select(ALL, BOTH, "remove")
    assert len(kept.overlap) == len(removed.overlap) == 54
    assert (len(kept.explore), len(kept.drops)) == (1483, 0)
    assert (len(removed.explore), len(removed.drops)) == (1429, 54)
    assert {drop.reason for drop in removed.drops} == {DropReason.OVERLAP}
    assert ids(removed.drops) == list(removed.overlap)
    assert not set(ids(removed.explore)) & set(ids(removed.evaluate))


def test_the_selection_takes_the_first_of_each_type_in_list_order():
    selection = select(SOME, BOTH, "remove")
    plant = [f"sciworld/find-plant/{variation}" for variation in range(9)]
    assert [i for i in ids(selection.sft) if "plant" in i] == plant[:5]
    assert [i for i in ids(selection.explore) if "plant" in i] == plant[5:]
    assert (len(selection.sft), len(selection.explore)) == (10, 8)
    assert [task.split for task in selection.evaluate] == ["seen"] * 6 + ["unseen"] * 6
    everything = ids((*selection.sft, *selection.explore, *selection.evaluate))
    assert len(everything) == len(set(everything))
    assert selection.sft[0].data == {"task": "boil", "variation": 0}
    repeated = select(SOME.model_copy(update={"explore_sft": True}), ["seen"], "remove")
    assert set(ids(repeated.explore)) < set(ids(repeated.sft))
    assert {task.split for task in repeated.evaluate} == {"seen"}


def test_a_shuffled_selection_takes_other_tasks_of_the_same_lists_and_the_same_ones_each_time():
    shuffled = select(SOME.model_copy(update={"shuffle": 5}), BOTH, "remove")
    plants = [task.data["variation"] for task in shuffled.sft if task.kind == "find-plant"]
    assert plants == [144, 45, 27, 124, 63]
    parts = [ids(part) for part in (shuffled.sft, shuffled.explore, shuffled.evaluate)]
    assert [len(part) for part in parts] == [10, 8, 12] and len(set().union(*parts)) == 30
    assert {task.task_id for task in shuffled.evaluate if task.split == "seen"} < set(ids(listed("official", "seen")))
    whole = SOME.model_copy(update={"sft": None, "explore_sft": True})
    mixed = whole.model_copy(update={"shuffle": 5})
    assert {*ids(select(whole, BOTH, "remove").sft)} == {*ids(select(mixed, BOTH, "remove").sft)}
    assert "shuffle" not in SOME.model_dump()
    assert select(SOME.model_copy(update={"shuffle": 6}), BOTH, "remove") != shuffled


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"kinds": ["find-plants"]}, "tasks.kinds"),
        ({"sft": None}, "tasks.explore"),
        ({"lists": "eto", "kinds": ["mendelian-genetics-known-plant"]}, "tasks.sft"),
    ],
)
def test_an_empty_selection_names_the_key(change, key):
    with pytest.raises(UserError, match=f"`{key}`"):
        select(SOME.model_copy(update=change), BOTH, "remove")


def test_step_limits_and_numbers_of_types():
    three = ("lifespan-longest-lived", "boil", "inclined-plane-determine-angle")
    assert [step_limit(kind) for kind in three] == [10, 100, 100]
    assert {step_limit(task.kind) for task in listed("eto", "train")} == {10, 12, 15, 20, 30, 60, 80, 100, 120}
    assert kinds_by_number()["11"] == "find-animal" and "99" not in kinds_by_number()


def test_the_official_splits_are_the_simulators(simulator):
    world = simulator.new_world()
    for kind in kinds()[::5]:
        world.interface.load(kind, 0, "", False)
        stated = [world.interface.getVariationsTrain(), world.interface.getVariationsDev()]
        stated.append(world.interface.getVariationsTest())
        for split, variations in zip(("train", "seen", "unseen"), stated, strict=True):
            listed_here = [task.data["variation"] for task in listed("official", split) if task.kind == kind]
            assert list(variations) == listed_here
    simulator.drop(world)


def test_development_tasks_are_training_tasks_that_nothing_else_uses():
    selection = select(SOME, ["development"], "remove")
    used = ids((*selection.sft, *selection.explore))
    assert ids(selection.sft) == ids(select(SOME, BOTH, "remove").sft)
    assert {task.split for task in selection.evaluate} == {"development"}
    assert {task.kind for task in selection.evaluate} == {"find-plant", "boil"}
    plants = [task for task in listed("official", "train") if task.kind == "find-plant"]
    assert [i for i in ids(selection.evaluate) if "plant" in i] == ids(plants[:-4:-1])
    evaluated = {task.task_id for split in BOTH for task in listed("official", split)}
    assert not set(ids(selection.evaluate)) & ({*used} | evaluated)
