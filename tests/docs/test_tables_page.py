"""The page on tables is true, and the tables agree with what is printed of the same results."""

import contextlib
import doctest
import json
import re
from statistics import fmean

import pytest

from coevolve import results
from coevolve.errors import UserError
from coevolve.results import tables

READERS = {name: getattr(results, name) for name in tables.NAMES}


@pytest.fixture(scope="module")
def frames(made):
    """The tables of the finished suite by name."""
    with contextlib.chdir(made):
        return {name: read("glance") for name, read in READERS.items()}


def test_the_readme_shows_the_line_and_its_answer(root, monkeypatch):
    monkeypatch.chdir(root)
    (block,) = re.findall(r"```python\n(>>> .*?)```", (root / "README.md").read_text(), re.DOTALL)
    test = doctest.DocTestParser().get_doctest(block, {}, "README.md", None, 0)
    assert doctest.DocTestRunner(verbose=False).run(test) == (0, 2)


def test_the_python_runs(read, made, capsys):
    (block,) = read("tables").blocks("python")
    with contextlib.chdir(made):
        exec(compile(block.replace("smoke", "glance"), "docs/read/tables.md", "exec"), {})
    assert capsys.readouterr().out.startswith("method     env      iteration\ncoevolve   webshop  0 ")


def test_the_page_names_every_column(read, frames):
    page = read("tables").text
    listed = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| (.*) \|$", page, re.MULTILINE))
    assert list(listed) == list(frames)
    made_by = {"hardware", "container", "commit", "dirty", "code_digest", "config_digest", "protocol", "slurm_job"}
    kinds = r"expert_\w+/|failure_\w+/"  # "the same by pair kind"
    for name, frame in frames.items():
        named = {*re.findall(r"`([\w/]+)", listed[name]), *tables.KEY}
        others = [column for column in frame.columns if not {column, column.split("/")[0] + "/"} & named]
        assert [each for each in others if each not in made_by and not re.match(kinds, each)] == [], name
        assert frame.columns[:6].tolist() == list(tables.KEY)


def test_means_are_those_of_table_1_and_counts_those_of_the_pairs(made, frames):
    paper = made / "results/glance/paper"
    printed = json.loads((paper / "table1/table1.json").read_text())[0]["cells"]
    evaluated = frames["episodes"][frames["episodes"].phase == "evaluation"]
    for cell in printed:
        if cell["estimate"] and cell["column"] != "mean":
            rows = evaluated[evaluated.method == cell["row"]]
            last = rows[rows.iteration == rows.iteration.max()]
            assert 100 * fmean(last.reward) == pytest.approx(cell["estimate"]["mean"])
            assert {*last.file} == {*cell["sources"]}, "from which `why` walks on"
    counts = json.loads((paper / "pair_counts/pairs.json").read_text())
    kept = frames["pairings"].set_index(["method", "agent", "kind"])
    assert len(counts) == len(kept) > 2
    for row in counts:
        of = kept.loc[(row["method"], row["agent"], row["kind"])]
        assert (of.candidates, of.pairs) == (row["candidates"], row["pairs"])
        assert {name: of[f"drops/{name}"] for name in row["drops"]} == row["drops"]
    trained = frames["pairs"].groupby(["method", "agent", "kind"]).size()
    assert all(kept.pairs[key] == count for key, count in trained.items())
    explored = frames["episodes"][frames["episodes"].phase == "exploration"]
    assert {*frames["pairs"].rejected_id} <= {*explored.trajectory_id}


def test_steps_and_costs_are_those_of_the_jobs(frames):
    steps, jobs = frames["trainings"], frames["jobs"].set_index("result")
    assert {*steps.stage} == {"pretrain", "sft", "train"} and {*steps.result} <= {*jobs.index}
    assert steps.groupby("result").step.max().equals(steps.groupby("result").step.size())
    assert (jobs.loc[[*{*steps.result}]].trained_tokens > 0).all() and jobs.seconds.min() >= 0


def test_a_committed_suite_has_the_means_that_its_table_prints(root, monkeypatch):
    monkeypatch.chdir(root)
    episodes = results.episodes("real_tuned")
    cells = json.loads((root / "results/reference/real_tuned/table1.json").read_text())[0]["cells"]
    printed = {(c["row"], c["column"]): c["estimate"]["mean"] for c in cells if c["estimate"]}
    last = episodes.groupby("method").iteration.transform("max")
    means = 100 * episodes[episodes.iteration == last].groupby(["method", "split"]).reward.mean()
    assert {(method, f"sciworld_{split}"): mean for (method, split), mean in means.items()} == pytest.approx(
        {key: mean for key, mean in printed.items() if key[1] != "mean"}
    )
    assert results.trainings("real_tuned").loss.notna().any() and results.jobs("real_tuned").seconds.sum() > 0
    with pytest.raises(UserError, match="`real_tuned` has no table `pairs` here; run `snakemake"):
        results.pairs("real_tuned")


def test_a_changed_table_is_refused(made, tmp_path):
    folder = tmp_path / "tables"
    folder.mkdir()
    for path in (made / "results/glance/paper/tables").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    assert len(results.jobs(folder)) > 10
    (folder / "jobs.parquet").write_bytes((folder / "pairs.parquet").read_bytes())
    with pytest.raises(UserError, match=r"jobs\.parquet: the file was changed"):
        results.jobs(folder)
