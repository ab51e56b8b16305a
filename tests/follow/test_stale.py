"""The doctor names results whose code was edited since, the edit, and the command that makes them again."""

import subprocess
import sys

import pytest
from checkout import copy_of, environment
from small_run import SUITE

#: Prints the doctor's checks of all suites with results, and exits as the command does.
LOOK = """
import sys
from pathlib import Path
from coevolve.cli import planning
from coevolve.follow import stale
sys.exit(planning.print_checks(stale.checks(Path("results"), "smoke")))
"""
PREPARE = ("-m", "coevolve", "stage", "prepare", "--suite", "glance", "--on", "env=webshop")


@pytest.fixture(scope="module")
def kit(root, tmp_path_factory):
    """A checkout with a commit, and a result of the suite `glance`."""
    kit = copy_of(root, tmp_path_factory.mktemp("kit") / "kit")
    (kit / "configs/glance.yaml").write_text(SUITE)
    (kit / "results/not_a_suite").mkdir(parents=True)
    for command in (["init", "-q"], ["add", "coevolve"], ["commit", "-q", "-m", "all"]):
        git(kit, *command)
    prepare(kit)
    return kit


def git(kit, *arguments):
    name = ("-c", "user.name=a test", "-c", "user.email=test@example.org")
    subprocess.run(["git", *name, *arguments], cwd=kit, check=True, capture_output=True)


def python(kit, *arguments):
    return subprocess.run(
        [sys.executable, *arguments], cwd=kit, env=environment(kit), capture_output=True, text=True, check=True
    ).stdout


def prepare(kit):
    python(kit, *PREPARE, "--out", "results/glance/prepared/webshop")


def test_an_edit_of_code_is_named_with_the_results_that_it_makes_stale(kit):
    shop, unrelated = kit / "coevolve/envs/webshop/shop.py", kit / "coevolve/train/losses.py"
    text = shop.read_text()
    fresh = "ok      results of glance: 1 were made by the present code\n"
    assert python(kit, "-c", LOOK) == fresh
    unrelated.write_text(unrelated.read_text() + "\nANOTHER = 1\n")
    shop.write_text(f"# a comment\n{text}")
    assert python(kit, "-c", LOOK) == fresh
    shop.write_text(f"{text}\nANOTHER = 1\n")
    edited = (
        "stale   results of glance: 1 of 1 were made by other code (1 prepare); "
        "edited since: 1 coevolve.envs.webshop.shop;"
    )
    command = "`snakemake --profile smoke --config suite=glance` makes them again."
    assert python(kit, "-c", LOOK) == f"{edited} {command}\n"
    git(kit, "commit", "-a", "-q", "-m", "edited")
    assert python(kit, "-c", LOOK) == f"{edited} {command}\n", "a committed edit, too"


def test_an_edit_that_was_never_committed_is_counted(kit):
    shop = kit / "coevolve/envs/webshop/shop.py"
    text = shop.read_text()
    shop.write_text(f"{text}\nYET_ANOTHER = 1\n")
    prepare(kit)
    shop.write_text(text)
    unknown = "(1 prepare); for 1 git shows no edit (uncommitted, or in another package); `snakemake "
    assert unknown in python(kit, "-c", LOOK)
