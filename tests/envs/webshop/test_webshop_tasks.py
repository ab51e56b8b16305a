"""ETO's lists as data, the two ways to divide goals, and what is dropped or refused."""

import hashlib

import numpy as np
import pytest

from coevolve.envs.webshop import tasks
from coevolve.envs.webshop.config import WebShopSelection
from coevolve.envs.webshop.goals import Goal
from coevolve.errors import UserError
from coevolve.records.pairs import DropReason


def selection(**changes):
    values = {"lists": "eto", "kinds": None, "sft": None, "explore": None, "evaluate": None, "explore_sft": True}
    return WebShopSelection.model_validate({**values, **changes})


def invented(count):
    """Goals of three categories in turn."""
    categories = "red", "green", "blue"
    return [
        Goal(f"B{n}", categories[n % 3], "cups", "Cup", "Cups", "a cup", ("round",), 50.0, ()) for n in range(count)
    ]


GOALS = invented(12_087)


def test_etos_lists_are_those_it_published_and_have_the_known_faults():
    """Byte for byte `eval_agent/data/webshop` of ETO at a2fc5da."""
    digests = {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in (tasks.DATA / "eto").glob("*.json")}
    assert digests == {
        "train_indices": "15f44b4a5ca1e8c2f2a7f2e1849d7ebe1d93e5020426d80408b5f21f0a3a6202",
        "test_indices": "0e7fa2b9646a8800761a29fe9bdfff757235bdec7597e3211525230434e2ea66",
        "test_indices_500": "470de709d4e7beef58407e7dc725824b2a6a727f2d0ecf16bc20daa9deaa3587",
    }
    lists = tasks.eto_lists()
    assert (len(lists.train), len(set(lists.train)), len(lists.test)) == (1824, 1823, 200)
    assert lists.duplicates == (4116,)
    assert len(lists.overlap) == 21


def test_verl_agents_draw_is_that_of_its_generator_and_apart_from_training():
    """numpy's legacy generator draws without replacement from the beginning of a permutation."""
    lists = tasks.goal_lists(selection(lists="verl_agent"), 6000)
    assert list(lists.test) == np.random.RandomState(1000).permutation(500)[:128].tolist()
    assert lists.train == tuple(range(500, 6000)) and lists.overlap == ()
    with pytest.raises(UserError, match="more than 500 goals, this shop has 500"):
        tasks.goal_lists(selection(lists="verl_agent"), 500)


def test_fixed_removes_overlap_and_duplicate_and_counts_them():
    chosen = tasks.select(selection(), GOALS, ["test"], "remove")
    assert len(chosen.sft) == len(chosen.explore) == 1823 - 21
    assert len(chosen.evaluate) == 200
    assert not {task.task_id for task in chosen.training} & {task.task_id for task in chosen.evaluate}
    dropped = [(drop.reason, drop.task_id) for drop in chosen.drops]
    assert dropped.count((DropReason.DUPLICATE, "webshop/4116")) == 1
    assert sum(reason is DropReason.OVERLAP for reason, _ in dropped) == 21
    assert len(dropped) == 22
    kept = tasks.select(selection(), GOALS, ["test"], "keep")  # protocol `paper`
    assert [task.data["goal"] for task in kept.sft] == list(tasks.eto_lists().train)
    assert kept.drops == () and len(kept.overlap) == 21


def test_parts_are_disjoint_and_cover_all_goals_or_so_many_of_a_category():
    chosen = tasks.select(selection(lists="parts", test=30), GOALS[:100], ["test"], "remove")
    assert [task.data["goal"] for task in chosen.evaluate] == list(range(30))
    assert [task.data["goal"] for task in chosen.sft] == list(range(30, 100))
    assert {task.split for task in chosen.sft} == {"train"}
    assert {task.split for task in chosen.evaluate} == {"test"}
    task = chosen.evaluate[4]
    assert (task.task_id, task.kind, task.data) == ("webshop/4", "green", {"goal": 4})
    limits = selection(lists="parts", test=30, kinds=["red"], sft=5, evaluate=2)
    chosen = tasks.select(limits, GOALS[:100], ["test"], "remove")
    assert [task.data["goal"] for task in chosen.sft] == [30, 33, 36, 39, 42]
    assert [task.data["goal"] for task in chosen.evaluate] == [0, 3]


@pytest.mark.parametrize(
    ("config", "goals", "message"),
    [
        (selection(), 12_080, "ETO's lists reach goal 12080, this shop has 12080"),
        (selection(lists="parts", test=9), 9, "`tasks.test`: 9 of 9 goals leave none"),
        (selection(lists="parts", test=3, kinds=["mauve"]), 9, "unknown task type `mauve`; known are red, green, blue"),
    ],
)
def test_what_does_not_fit_is_one_sentence(config, goals, message):
    with pytest.raises(UserError, match=message):
        tasks.select(config, GOALS[:goals], ["test"], "remove")
