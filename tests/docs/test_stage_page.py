"""The page on adding a stage is true: in a copy of the kit its stage runs, and no other job runs again."""

import json
import re
import shutil
from dataclasses import fields

import pytest
from small_run import SUITE

from coevolve.pipeline.stage import Stage
from coevolve.records.episodes import Trajectory
from coevolve.storage import jsonl

PAPER, MODULE = "coevolve/pipeline/paper.py", "coevolve/pipeline/stages/lengths.py"
EVALUATE = '        return self._play(evaluate.STAGE, subject if alone else policy.subject, "eval", policy, tasks)\n'
BRANCH = "tiny/webshop/base/untrained"
EVALUATED = f"results/glance/{BRANCH}/eval/records.jsonl"


@pytest.fixture(scope="module")
def page(read):
    """The page, about a suite of seconds."""
    page = read("add_a_stage")
    page.text = page.text.replace("results/smoke", "results/glance").replace("--suite smoke", "--suite glance")
    page.text = page.text.replace("--profile smoke ", "--profile smoke --config suite=glance -- ")
    page.text = page.text.replace("-- --dry-run ", "--dry-run -- ")
    return page


@pytest.fixture(scope="module")
def added(page, kit, made):
    """A copy of the kit with the finished suite, as if its Snakemake had run it, and then the page's stage."""
    kit.write("configs/glance.yaml", SUITE)
    shutil.copytree(made / "results", kit.folder / "results", dirs_exist_ok=True)
    kit.run("snakemake", "--profile", "smoke", "--config", "suite=glance", "--touch", "--forceall", "--", EVALUATED)
    module, call = page.blocks("python")
    kit.write(MODULE, module)
    kit.edit(PAPER, "    grpo,\n", "    grpo,\n    lengths,\n")
    kit.edit(PAPER, EVALUATE, call)
    return kit


@pytest.fixture(scope="module")
def ran(page, added):
    """What each command of the page prints, on stdout and stderr."""
    return [added.shell(f"{command} 2>&1") for command in page.commands]


def test_it_is_listed(ran):
    assert re.search(r"lengths +Count the turns of evaluated episodes", ran[0])


def test_it_runs_and_no_other_job_does(ran):
    assert re.findall(r"^.* · (\w+)  \d+:\d\d  \[5/5\]", ran[1], re.MULTILINE) == ["lengths"]
    assert "5 jobs, 4 are done" in ran[1]
    assert "Nothing to be done" in ran[3]


def test_its_result_is_about_the_episodes(added, ran):
    episodes = jsonl.read(added.folder / f"results/glance/{BRANCH}/eval/episodes.jsonl", Trajectory)
    turns = json.loads(ran[2])
    assert sorted(number for each in turns.values() for number in each) == sorted(len(e.turns) for e in episodes)
    assert set(turns) == {episode.stop.value for episode in episodes}
    record = json.loads((added.folder / f"results/glance/{BRANCH}/lengths/provenance.json").read_text())
    assert record["notes"] == {"episodes": len(episodes)} and record["config"] == {}


def test_it_runs_without_snakemake(added, ran):
    alone = (added.folder / "results/lengths/lengths.json").read_bytes()
    assert alone == (added.folder / f"results/glance/{BRANCH}/lengths/lengths.json").read_bytes()


def test_the_table_names_every_field(page):
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", page.text, re.MULTILINE))))
    assert named == {field.name for field in fields(Stage)}


def test_what_it_adds_keeps_to_the_style(added):
    for check in (("check",), ("format", "--check")):
        added.run("ruff", *check, PAPER, MODULE)
