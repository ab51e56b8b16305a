"""Edits are drawn by line from a seed; the tests that cover a line judge its edit."""

import pytest
from mutants.operators import edits
from mutants.sample import Cover, Mutation, draw, judge, table

SOURCE = '''"""A docstring with 3 < 4."""
import os


def least(values: dict[str, int], bound=2) -> int:
    """The least value."""
    if bound < 1 and not values:
        raise ValueError("bound < 1")
    total = values["a"] + sum(values.values(), start=bound)
    values.update(b=min(total, bound))
    return total
'''
WRONG = {
    "comparison": "if bound <= 1 and not values:",
    "and, or": "if bound < 1 or not values:",
    "condition negated": "if (not (bound < 1 and not values)):",
    "condition True": "if True:",
    "condition False": "if False:",
    "arithmetic": 'total = values["a"] - sum(values.values(), start=bound)',
    "key": "total = values['a_'] + sum(values.values(), start=bound)",
    "argument dropped": 'total = values["a"] + sum(values.values(), )',
    "arguments swapped": "values.update(b=min(bound, total))",
    "statement deleted": "    pass\n",
    "returns None": "return None\n",
    "constant": "bound=(2 + 1)",
    "early return": "    return None\n    if bound < 1",
}


@pytest.mark.parametrize("operator", WRONG)
def test_an_operator_makes_its_edit(operator):
    found = [edit.apply(SOURCE) for edit in edits(SOURCE) if edit.operator == operator]
    assert any(WRONG[operator] in each for each in found)
    for each in found:
        compile(each, "mutant", "exec")
        assert each != SOURCE


def test_texts_annotations_and_imports_are_left_alone():
    assert {edit.line for edit in edits(SOURCE)} == {5, 7, 9, 10, 11}


def test_a_sample_follows_from_its_seed_and_has_a_line_once():
    files = {"coevolve/a.py": SOURCE, "coevolve/b.py": SOURCE}
    drawn = draw(6, files, "seed")
    assert drawn == draw(6, files, "seed") != draw(6, files, "another")
    assert len({(each.file, each.edit.line) for each in drawn}) == 6
    assert {each.edit.line for each in draw(9, files, "seed", {"coevolve/a.py": {9, 10}})} == {9, 10}


def test_the_tests_that_execute_a_line_judge_its_edit(tree, tmp_path):
    """The tree of test_mutants: a line whose test sees one of its two edges."""
    cover = Cover(tmp_path / "lines", tree)
    cover.record()
    tests = cover.tests("coevolve/sign.py", 2)
    assert tests[0] == "tests/test_sign.py::test_signs"
    source = (tree / "coevolve/sign.py").read_text()
    by_operator = {each.operator: Mutation.of("coevolve/sign.py", each, source) for each in edits(source)}
    assert judge(by_operator["condition True"], tests, tree) == "killed"
    assert judge(by_operator["comparison"], tests, tree) == "survived"
    assert judge(by_operator["comparison"], [], tree) == "not covered"
    sharper = "\n\ndef test_nothing():\n    assert sign(0) == -1\n"
    (tree / "tests/test_sign.py").write_text((tree / "tests/test_sign.py").read_text() + sharper)
    again = Cover(tmp_path / "lines", tree)
    again.record()
    assert judge(by_operator["comparison"], again.tests("coevolve/sign.py", 2), tree) == "killed"


def test_the_share_that_survives_leaves_equivalent_edits_out():
    mutations = draw(4, {"coevolve/train/a.py": SOURCE}, "seed")
    results = {each.name: "killed" for each in mutations} | {
        mutations[0].name: "survived",
        mutations[1].name: "survived",
    }
    core, room, judged = table(results, mutations, {mutations[1].name: "why"})
    assert core.split() == ["core", "1", "of", "3", "survive,", "6%", "to", "79%"] and room.startswith("train")
    assert judged.startswith("1 of 4 ")
