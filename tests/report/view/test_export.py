"""A finished suite in one folder: the files and a page of their own, made again from the folder alone."""

import contextlib
import json
import lzma
import re
import shutil

import numpy as np
import pytest
import scipy.stats
import small_run
from builders import relist
from command_line import exit_status

from coevolve.config.loading import load_suite
from coevolve.errors import UserError
from coevolve.export import suite_export
from coevolve.pipeline.machine import load_machine
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.registry import ENDS, STAGES
from coevolve.records.provenance import Provenance
from coevolve.report import claims
from coevolve.watch.run_record import RunRecord

NAMES = sorted(
    {name for product in ENDS for name in STAGES[product].files if not name.endswith(".tex")}
    | {"jobs.jsonl.xz", "records.jsonl.xz", "provenance.json"}
)
PRODUCT = "results/glance/paper/figure3/figure3.json"


def run(folder, *arguments):
    """The exit status of `coevolve export reference` in a folder."""
    with contextlib.chdir(folder):
        return exit_status("export", "reference", *arguments)


@pytest.fixture(scope="module")
def folder(made):
    assert run(made, "--suite", "glance") == 0
    return made / "results/reference/glance"


def test_the_folder_has_every_product_as_it_is_and_a_page(made, folder):
    assert sorted(path.name for path in folder.iterdir()) == NAMES
    for path in (made / "results/glance/paper").glob("*/*.*"):
        if path.name not in ("provenance.json", "report.html", "table1.tex"):
            assert (folder / path.name).read_bytes() == path.read_bytes()
    table1 = made / "results/glance/paper/table1/provenance.json"
    assert (folder / "provenance.json").read_bytes() == table1.read_bytes()


def test_the_intervals_can_be_computed_again_from_the_records(made, folder):
    records = [json.loads(line) for line in lzma.decompress((folder / "records.jsonl.xz").read_bytes()).splitlines()]
    rewards = {(each["result"], each["seed"], each["task_id"]): each["reward"] for each in records}
    assert len(rewards) == len(records) > 0
    compared = json.loads((folder / "differences.json").read_text())
    for difference in compared:
        better, than = (
            {key[1:]: reward for key, reward in rewards.items() if key[0] == evaluation}
            for evaluation in (f"tiny/webshop/{path(difference[side])}" for side in ("better", "than"))
        )
        values = [better[key] - than[key] for key in sorted(better)]
        ends, estimate = scipy.stats.ttest_1samp(values, 0.0).confidence_interval(), difference["estimate"]
        assert estimate["mean"] == pytest.approx(np.mean(values))
        assert len(set(values)) == 1 or (estimate["low"], estimate["high"]) == pytest.approx(tuple(ends))
    assert compared


def path(method):
    """Where the suite `glance` has the evaluation of a method's last iteration."""
    shared = {"untrained": "base/untrained/eval", "sft": "base/seed0/eval"}
    return shared.get(method, f"{method}/seed0/iter1/eval")


def test_the_page_is_whole_and_its_links_resolve(browser, folder):
    browser.open(folder / "report.html")
    assert browser.complaints() == []
    assert browser.requests() == [(folder / "report.html").resolve().as_uri()]
    titles = browser.run("[...document.querySelectorAll('h2')].map((each) => each.innerText)")
    assert {"The loop", "Learning curves", "Training curves", "Costs", "Provenance", "Verdicts"} <= set(titles)
    links = browser.run("[...document.querySelectorAll('a')].map((each) => each.getAttribute('href'))")
    assert all(browser.run(f"document.querySelector('{link}') !== null") for link in links if link.startswith("#"))
    files = {link for link in links if not link.startswith("#")}
    assert files <= set(NAMES) and {"table1.json", "figure3.svg", "jobs.jsonl.xz"} <= files
    run = browser.run("document.getElementById('run').innerText")
    assert "WebShop" in run and "tiny Llama" in run and "jobs" not in run.split("Jobs")[0]


def test_the_page_is_made_again_from_the_folder_alone(folder, tmp_path, root):
    copy = shutil.copytree(folder, tmp_path / "glance")
    (copy / "report.html").unlink()
    assert run(root, "--out", str(copy)) == 0
    assert (copy / "report.html").read_bytes() == (folder / "report.html").read_bytes()


def test_an_export_is_replaced_and_nothing_else(made, folder, capsys, tmp_path):
    (folder / "growth.md").write_text("of an export of another suite")
    assert run(made, "--suite", "glance") == 0
    assert not (folder / "growth.md").exists()
    (folder / "notes.md").write_text("a person's")
    assert run(made, "--suite", "glance") == 2
    assert "glance: has notes.md, which is not of this export; name another" in capsys.readouterr().err
    (folder / "notes.md").unlink()
    (tmp_path / "thesis").mkdir()
    assert run(made, "--suite", "glance", "--out", str(tmp_path / "thesis")) == 2
    assert "thesis: exists and is not an export; give another --out" in capsys.readouterr().err
    assert run(made, "--suite", "glance", "--out", "results/glance/paper/page") == 2
    assert "page: is in the suite's own results; give another --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "edit", "sentence"),
    [
        (["--suite", "glance"], None, "figure3.json: no such file; run the suite to its end first."),
        (["--suite", "glance"], "{}", "figure3.json: the file was changed"),
        (["--suite", "glance", "--set", "seeds=[0,1]"], "", "made with other settings than the suite's; run the suite"),
        ([], "", "give --suite, or --out with the folder of an export"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence_and_nothing_is_lost(made, folder, arguments, edit, sentence, capsys):
    product, before = made / PRODUCT, (made / PRODUCT).read_bytes()
    product.unlink() if edit is None else product.write_bytes(edit.encode() or before)
    try:
        assert run(made, *arguments) == 2
    finally:
        product.write_bytes(before)
    error = capsys.readouterr().err
    assert sentence in error and len(error.splitlines()) == 1
    assert sorted(path.name for path in folder.iterdir()) == NAMES


@pytest.mark.parametrize(
    ("name", "edit", "sentence"),
    [
        ("jobs.jsonl.xz", lambda _: b"no archive", "jobs.jsonl.xz: damaged, or of another version of the kit; export"),
        ("jobs.jsonl.xz", lambda content: content[:-20], "jobs.jsonl.xz: damaged, or of another version of the kit"),
        ("provenance.json", lambda content: content.replace(b'"recipes"', b'"rows"'), "has no settings of a table, or"),
    ],
)
def test_a_damaged_record_is_one_sentence_and_the_page_stays(folder, tmp_path, name, edit, sentence, capsys):
    copy = shutil.copytree(folder, tmp_path / "glance")
    (copy / name).write_bytes(edit((copy / name).read_bytes()))
    assert run(tmp_path, "--out", str(copy)) == 2
    error = capsys.readouterr().err
    assert sentence in error and len(error.splitlines()) == 1
    assert (copy / "report.html").read_bytes() == (folder / "report.html").read_bytes()


@pytest.mark.parametrize(
    ("name", "key", "sentence"),
    [
        ("figure3.json", "points", "key `points` is not as this version of the kit writes it; make"),
        ("verdicts.json", "claim", "key `0.claim` is not as this version of the kit writes it; make"),
        ("regime.json", "threshold", "key `0.threshold` is not as this version of the kit writes it; make"),
        ("costs.json", "gpu_hours", "key `stage.0.gpu_hours` is not as this version of the kit writes it; make"),
        ("table1.json", "footnotes", "a table of another version of the kit; run its stage again"),
    ],
)
def test_a_product_of_another_version_is_one_sentence_and_not_left_out(root, tmp_path, name, key, sentence):
    """Nor is a page written from an edited table, whose provenance is there."""
    copy, paper = tmp_path / "real_tuned", claims.load(root / "configs/claims.yaml")
    shutil.copytree(root / "results/reference/real_tuned", copy)
    (copy / name).write_text((copy / name).read_text().replace(f'"{key}":', '"renamed":'))
    if name == "table1.json":
        with pytest.raises(UserError, match=r"/table1\.json: the file was changed: its sha256 is"):
            suite_export.write_page(copy, paper)
    relist(copy)
    with pytest.raises(UserError, match=f"/{name}: {sentence}"):
        suite_export.write_page(copy, paper)


def stages_of(folder):
    """The stages of an export's jobs."""
    lines = lzma.decompress((folder / "jobs.jsonl.xz").read_bytes()).splitlines()
    return [Provenance.from_json(line).stage for line in lines]


def test_an_ablation_is_exported_alone(made, browser, tmp_path, capsys):
    made = shutil.copytree(made, tmp_path / "run", symlinks=True)
    assert run(made, "--suite", "glance", "--ablation", "lambdas") == 2
    assert "the suite has no ablation `lambdas`; did you mean `lambda`?" in capsys.readouterr().err
    assert run(made, "--suite", "glance", "--ablation", "base_models") == 2  # not built yet
    assert "no such file; run the suite to its end first" in capsys.readouterr().err
    with contextlib.chdir(made):
        small_run.make(Plan(load_suite("configs/glance.yaml")), "results/glance/ablations/base_models/table.json")
    assert run(made, "--suite", "glance", "--ablation", "base_models") == 0
    folder = made / "results/reference/glance_base_models"
    of_any = {"jobs.jsonl.xz", "provenance.json", "records.jsonl.xz", "report.html", "training_curves.svg"}
    assert {path.name for path in folder.iterdir()} == of_any | {"summary.md", "table.json", "table.md"}
    assert (folder / "table.md").read_bytes() == (made / "results/glance/ablations/base_models/table.md").read_bytes()
    browser.open(folder / "report.html")
    assert browser.complaints() == []
    stages = set(stages_of(folder))
    assert stages >= {"data", "sft", "rollout", "pairs", "train", "evaluate"} and not stages & {"ablation", "table1"}


def test_the_jobs_of_a_divided_run_have_its_parts(made, tmp_path):
    made = shutil.copytree(made, tmp_path / "run", symlinks=True)
    machine = made / "configs/machines/divided.yaml"
    text = (made / "configs/machines/cpu.yaml").read_text()
    machine.write_text(re.sub(r"shards: .*", "shards: {rollout: 1, evaluate: 2}", text))
    with contextlib.chdir(made):
        plan = Plan(load_suite("configs/glance.yaml"), shards=load_machine("divided").shards)
        RunRecord(
            command="snakemake", machine="divided", overrides=[], cluster=False, slots=1, started=0.0, jobs=[], todo=[]
        ).write(plan.home)
        shutil.rmtree("results/glance/tiny/webshop/eto/seed0/iter1/eval")
        small_run.make(plan, "results/glance/tiny/webshop/eto/seed0/iter1/eval/records.jsonl")
    assert run(made, "--suite", "glance") == 0
    assert stages_of(made / "results/reference/glance").count("shard") == 2


def test_every_committed_result_has_the_page_that_the_present_code_writes(root, tmp_path):
    folders = sorted(path.parent for path in (root / "results/reference").glob("*/provenance.json"))
    assert folders
    paper = claims.load(root / "configs/claims.yaml")
    for folder in folders:
        copy = shutil.copytree(folder, tmp_path / folder.name)
        suite_export.write_page(copy, paper)
        assert (copy / "report.html").read_bytes() == (folder / "report.html").read_bytes(), (
            f"`coevolve export reference --out results/reference/{folder.name}` writes it again"
        )
