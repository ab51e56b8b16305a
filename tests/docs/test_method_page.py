"""The page on adding a method is true: its methods are planned, and what it shows is what comes out."""

import re
import shlex
from typing import get_args

import pytest
from snakemake.cli import parse_config

from coevolve.errors import UserError
from coevolve.train.settings import OBJECTIVE_PARAMETERS, ObjectiveName
from coevolve.watch.snakemake_run import SnakemakeRun


@pytest.fixture(scope="module")
def page(read):
    return read("add_a_method")


@pytest.fixture(scope="module")
def planned(page, kit):
    """A copy of the kit with the page's suite."""
    (suite,) = page.blocks("yaml")
    kit.write("configs/mine.yaml", suite)
    return kit


@pytest.fixture
def here(planned, console, monkeypatch):
    """Runs `coevolve` in the copy's folder, in this process."""
    monkeypatch.chdir(planned.folder)
    return console


def test_the_parts_it_names_can_be_asked_for(page, here):
    listed = here(page.commands[0]).splitlines()
    shown = page.blocks("text")[0].splitlines()
    assert len(shown) == 3
    assert set(shown) <= set(listed)


def test_the_plan_has_the_jobs_it_counts(page, here):
    printed = here(page.commands[1])
    assert "Suite mine, ablation eto_nll, on " in printed
    (methods,) = re.findall(r"^\| method .*\n\|[-|]+\|\n((?:\|.*\n)+)", printed, re.MULTILINE)
    counted = re.findall(r"^\| (\S.*?) +\| +(\d+) \|", methods, re.MULTILINE)
    shown = re.findall(r"^(.+?) +(\d+)$", page.blocks("text")[1], re.MULTILINE)
    assert shown == [row for row in counted if row[0] not in ("shared", "all")]


def test_the_other_commands_run(page, planned, here):
    dry, other = planned.shell(page.commands[2]), here(page.commands[3])
    assert len(page.commands) == 4
    assert "rule ablation:" in dry
    assert re.search(r"job=\S+/eto_nll/seed0/iter1/", dry)
    assert "Suite smoke on" in other


def test_the_objectives_are_those_that_there_are(page):
    listed = re.findall(r"^\| `(\w+)` \| (.*?)\| [^|`]+\|$", page.text, re.MULTILINE)
    assert [name for name, _ in listed] == list(get_args(ObjectiveName))
    assert {name: tuple(re.findall(r"`(\w+)`", named)) for name, named in listed if named} == OBJECTIVE_PARAMETERS


def test_a_wrong_row_is_the_sentence_it_shows(page, planned, coevolve, monkeypatch):
    monkeypatch.chdir(planned.folder)
    wrong = "recipes.eto_nll.agents.target.base=sft"
    status, _, err = coevolve("targets", "--suite", "mine", "--set", wrong)
    assert status == 2
    assert err == f"coevolve: {page.blocks('text')[2]}"


def test_the_suite_of_the_page_on_reuse_is_planned_with_its_flag(read, kit):
    page = read("reuse")
    (suite,), (command,) = page.blocks("yaml"), page.commands
    kit.write("configs/longer.yaml", suite)
    printed = kit.shell(command.replace(" -n ", " -n -p "))
    assert "rule train:" in printed and re.search(r"job=\S+/eto/seed0/iter1/policy/target", printed)
    assert re.search(r" job results/longer/\.jobs/\S+ --no-reuse ", " ".join(printed.split()))
    wrong = kit.ask(*shlex.split(command.replace("reuse=false", "reuse=never")))
    sentence = "--config reuse=never: write `reuse=false` to run every job, or leave it out."
    assert wrong.returncode != 0 and f"coevolve: {sentence}" in wrong.stderr
    for setting, sentence in (
        ("machine=", "--config machine=: it is empty; name one, or leave it out."),
        ("machne=h100", "--config machne=: unknown key; did you mean `machine`?"),
    ):
        with pytest.raises(UserError) as raised:
            SnakemakeRun(None, parse_config(["suite=longer", setting]), {})
        assert str(raised.value) == sentence
