"""The doctor names results whose code was edited since, the edit, and the command that makes them again."""

import pytest
from checkout import Copy, copy_of
from small_run import SUITE

#: Prints the doctor's checks of all suites with results, and exits as the command does.
LOOK = """
import sys
from pathlib import Path
from coevolve.cli import planning
from coevolve.follow import stale
sys.exit(planning.print_checks(stale.checks(Path("results"), "smoke")))
"""
OUT = ("--out", "results/glance/prepared/webshop")
PREPARE = ("-m", "coevolve", "stage", "prepare", "--suite", "glance", "--on", "env=webshop", *OUT)
COMMIT = ("-c", "user.name=a test", "-c", "user.email=test@example.org", "commit", "-a", "-q", "-m", "all")


@pytest.fixture(scope="module")
def kit(root, tmp_path_factory):
    """A checkout with a commit, and a result of the suite `glance`."""
    kit = Copy(copy_of(root, tmp_path_factory.mktemp("kit") / "kit"))
    kit.write("configs/glance.yaml", SUITE)
    (kit.folder / "results/not_a_suite").mkdir(parents=True)
    for command in (["init", "-q"], ["add", "coevolve"], COMMIT):
        kit.run("git", *command)
    kit.run("python", *PREPARE)
    return kit


def test_an_edit_of_code_is_named_with_the_results_that_it_makes_stale(kit):
    shop, unrelated = kit.folder / "coevolve/envs/webshop/shop.py", kit.folder / "coevolve/train/losses.py"
    text = shop.read_text()
    fresh = "ok      results of glance: 1 were made by the present code\n"
    assert (kit.python(LOOK), kit.python(LOOK.replace('"results"', '"nowhere"'))) == (fresh, "")
    unrelated.write_text(unrelated.read_text() + "\ndpo = dpo\n")
    shop.write_text(f"# a comment\n{text}")
    assert kit.python(LOOK) == fresh
    shop.write_text(f"{text}\nShop = Shop\n")
    edited = (
        "stale   results of glance: 1 of 1 were made by other code (1 prepare); "
        "edited since: 1 coevolve.envs.webshop.shop.Shop;"
    )
    command = "`snakemake --profile smoke --config suite=glance` makes them again."
    assert kit.python(LOOK) == f"{edited} {command}\n"
    kit.run("git", *COMMIT)
    assert kit.python(LOOK) == f"{edited} {command}\n", "a committed edit, too"
    kit.write("configs/glance.yaml", SUITE.replace("explore: 4", "explore: 3"))
    assert kit.python(LOOK) == "ok      results of glance: 0 were made by the present code, 1 with other settings\n"
    kit.write("configs/glance.yaml", SUITE)


def test_an_edit_that_was_never_committed_is_counted(kit):
    shop = kit.folder / "coevolve/envs/webshop/shop.py"
    text = shop.read_text()
    shop.write_text(f"{text}\nShop = Shop\nShop = Shop\n")
    kit.run("python", *PREPARE)
    shop.write_text(text)
    unknown = "(1 prepare); for 1 git shows no edit (uncommitted, or in another package); `snakemake "
    assert unknown in kit.python(LOOK)
