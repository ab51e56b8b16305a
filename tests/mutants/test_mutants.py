"""The runner of mutants tells a killed mutant from one that survives. That the list fits the code is a law."""

from mutants.run import Mutant, load, main

MUTANTS = load()
SIGN = {"file": "coevolve/sign.py", "tests": ("tests/test_sign.py",)}


def test_no_mutant_is_listed_twice():
    assert len({mutant.what for mutant in MUTANTS}) == len({(m.file, m.old, m.new) for m in MUTANTS}) == len(MUTANTS)


def test_the_runner_names_killed_surviving_and_lost_mutants_and_leaves_the_tree_as_it_was(tree, capsys):
    code = (tree / SIGN["file"]).read_text()
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
    assert (tree / SIGN["file"]).read_text() == code
