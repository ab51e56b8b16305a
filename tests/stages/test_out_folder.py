"""`--out` replaces a result of the same stage and nothing else."""

import shutil
from pathlib import Path

import pytest
from command_line import stage_command
from small_run import SUITE

from coevolve.config.loading import load_suite
from coevolve.pipeline.plan import Plan

HOME = Path("results/glance")


@pytest.fixture
def figure3(made, monkeypatch, coevolve):
    """Draws Figure 3 of the small suite to a folder; returns the exit status and stderr."""
    monkeypatch.chdir(made)
    (made / "configs/glance.yaml").write_text(SUITE)
    inputs = Plan(load_suite("configs/glance.yaml")).products["figure3"].inputs

    def run(out):
        status, _, err = coevolve(*stage_command(("figure3", {}), "configs/glance.yaml", out, inputs))
        return status, err

    return run


def refused(run, out, *needles):
    before = sorted(Path().rglob("*"))
    status, err = run(out)
    sentence = err.strip().splitlines()[-1]
    assert status == 2 and sentence.startswith(f"coevolve: --out {out}: "), err
    for needle in needles:
        assert needle in sentence
    assert sorted(Path().rglob("*")) == before


def test_a_folder_of_someone_elses_files_or_of_another_stage_is_not_replaced(figure3):
    thesis = Path("mine/thesis.txt")
    thesis.parent.mkdir()
    thesis.write_text("five years")
    Path("link").symlink_to("mine")
    foreign = "stage `figure3` did not write these files"
    for out, *needles in (
        ("mine", foreign, "name another folder"),
        (HOME / "paper/table1", foreign),
        ("results", foreign),
        (".", "name a new folder"),
        ("mine/..", "name a new folder"),
        (thesis, "not a folder"),
        ("link", "not a folder"),
    ):
        refused(figure3, out, *needles)
    assert thesis.read_text() == "five years"


def test_an_empty_folder_and_a_result_of_the_same_stage_are_replaced(figure3):
    Path("new").mkdir()
    assert figure3("new")[0] == 0
    Path("new/stale.txt").touch()
    assert figure3("new")[0] == 0
    assert sorted(path.name for path in Path("new").iterdir()) == [
        "figure3.json", "figure3.svg", "provenance.json",
    ]  # fmt: skip
    assert [path.name for path in Path().iterdir() if "new" in path.name] == ["new"]


def test_the_jobs_own_folder_is_replaced_where_snakemake_deleted_the_provenance(figure3):
    own = HOME / "paper/figure3"
    (own / "provenance.json").unlink()
    elsewhere = shutil.copytree(own, "elsewhere")
    assert figure3(own)[0] == 0
    refused(figure3, elsewhere, "stage `figure3` did not write these files")
