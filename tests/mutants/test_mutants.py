"""The runner of mutants tells a killed mutant from one that survives. That the list fits the code is a law."""

import pytest
from mutants.run import Mutant, load, main

MUTANTS = load()
#: A package of a line with a test that sees one of its two edges.
CODE = "def sign(x):\n    return 1 if x > 0 else -1\n"
TEST = "from coevolve.sign import sign\n\n\ndef test_signs():\n    assert (sign(2), sign(-2)) == (1, -1)\n"
SIGN = {"file": "coevolve/sign.py", "tests": ("tests/test_sign.py",)}


def test_no_mutant_is_listed_twice():
    assert len({mutant.what for mutant in MUTANTS}) == len({(m.file, m.old, m.new) for m in MUTANTS}) == len(MUTANTS)


@pytest.fixture
def tree(root, tmp_path):
    """A tree with one module and one test."""
    for name, content in (("coevolve/sign.py", CODE), ("tests/test_sign.py", TEST)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(content)
    (tmp_path / "coevolve/__init__.py").touch()  # else the installed package would be imported
    (tmp_path / "configs").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    return tmp_path


def test_the_runner_names_killed_surviving_and_lost_mutants_and_leaves_the_tree_as_it_was(tree, capsys):
    killed = Mutant(what="always 1", old="1 if x > 0 else -1", new="1", **SIGN)
    survivor = Mutant(what="the edge", old="x > 0", new="x >= 0", **SIGN)
    lost = Mutant(what="not there", old="x < 0", new="x <= 0", **SIGN)
    broken = Mutant(what="without its test", old="x > 0", new="x < 0", file=SIGN["file"], tests=("tests/test_none.py",))
    assert main(["always"], [killed, survivor], tree) == 0
    assert main([], [killed, survivor, lost], tree) == 1
    printed = capsys.readouterr().out
    for line in ("survived", "not found", "1 killed, 1 survived, 1 not found"):
        assert line in printed
    assert main([], [broken], tree) == 1
    assert "The tests fail without a mutant" in capsys.readouterr().out
    assert (tree / SIGN["file"]).read_text() == CODE
