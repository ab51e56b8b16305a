"""A suite takes another suite's results of equal jobs: it pays for what it changes alone."""

import contextlib
import hashlib
import itertools
import json
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest
from checkout import decided
from command_line import exit_status, stage_command

from coevolve.config.loading import load_suite
from coevolve.pipeline.job_file import JobFile, planned_file
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.registry import STAGES
from coevolve.pipeline.reuse import take
from coevolve.pipeline.stage import files_of
from coevolve.records.provenance import Provenance
from coevolve.storage import files, folders, provenance

SECOND = "extends: glance.yaml\nsuite: second\nrecipes: {eto: {settings: {dpo: {epochs: 2}}}}\n"
THIRD = "extends: glance.yaml\nsuite: third\n"
TARGET = "tiny/webshop/base/seed0/policy/target"
RECORDS = "tiny/webshop/base/seed0/eval/records.jsonl"


def run(suite, *flags, target=None):
    """Run a suite's jobs in the order of the DAG as Snakemake does, up to a file or all; returns their folders."""
    plan = Plan(load_suite(suite))
    files = [f"{plan.home}/{target}"] if target else plan.targets()
    folders = []

    def make(path):
        job = plan.job(path)
        if job is None or Path(path).exists():
            return
        for each in files_of(job.inputs):
            make(each)
        folders.append(job.folder)
        file = planned_file(job)
        JobFile.of(plan, job).write(file)
        assert exit_status("job", file, *flags) == 0, job.key

    for path in files:
        make(path)
    return folders


@pytest.fixture(scope="module")
def finished(made, tmp_path_factory):
    """A copy of the finished suite `glance` with the configs of two more, which this module runs."""
    folder = shutil.copytree(made, tmp_path_factory.mktemp("reuse") / "run", symlinks=True)
    (folder / "configs/second.yaml").write_text(SECOND)
    (folder / "configs/third.yaml").write_text(THIRD)
    return folder


@pytest.fixture(scope="module")
def second(finished):
    """The suite `second`, run beside `glance`: its folders."""
    with contextlib.chdir(finished):
        return run("second", "--reuse")


@pytest.fixture
def here(finished):
    with contextlib.chdir(finished):
        yield finished
    shutil.rmtree(finished / "results/third", ignore_errors=True)


def reused(folders):
    """(folder, folder where it was computed) of the results that were taken."""
    records = {folder: provenance.read(Path(folder, provenance.NAME)) for folder in folders}
    return [(folder, record.reused_from) for folder, record in records.items() if record.reused_from]


def computed(folders):
    """The folders of jobs that ran, without the products, which name their suite."""
    taken = dict(reused(folders))
    return [each for each in folders if each not in taken and "/paper/" not in each]


def test_only_the_changed_row_is_computed(here, second):
    assert {Path(each).relative_to("results/second").as_posix() for each in computed(second)} == {
        "tiny/webshop/eto/seed0/iter1/policy/target",
        "tiny/webshop/eto/seed0/iter1/gradients/target",
        "tiny/webshop/eto/seed0/iter1/eval",
    }
    assert len(computed(second)) < len(dict(reused(second)))


def test_the_results_are_those_of_the_other_suite_byte_for_byte(here, second):
    taken = dict(reused(second))
    for folder, source in taken.items():
        assert source == folder.replace("results/second", "results/glance")
        mine, other = (provenance.read(Path(each, provenance.NAME)) for each in (folder, source))
        assert mine.model_dump(exclude={"inputs", "reused_from", "workload"}) == other.model_dump(
            exclude={"inputs", "reused_from", "workload"}
        )
        assert [*mine.inputs.values()] == [*other.inputs.values()]
        assert not any("results/glance" in path for path in mine.inputs)
        for name in mine.outputs:
            assert files.sha256(Path(folder, name)) == files.sha256(Path(source, name))
    made, before = (
        {name: content for name, content in decided(Path("results", suite)).items() if not name.startswith(".jobs/")}
        for suite in ("second", "glance")
    )
    changed = {name for name in before if made[name] != before[name]}
    assert changed and all("/eto/" in name or name.startswith("paper/") for name in changed)


def whole_file(path):
    """The path, or the first file in a folder."""
    return min(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else path


def test_files_that_snakemake_tracks_are_copies_and_newer_than_their_inputs(here, second):
    for folder, source in reused(second):
        record = provenance.read(Path(folder, provenance.NAME))
        tracked = {*STAGES[record.stage].files}
        for name in record.outputs:
            mine, other = (whole_file(Path(each, name)) for each in (folder, source))
            assert mine.samefile(other) == (name not in tracked), "weights take no second place on the disk"
        inputs = [Path(path).stat().st_mtime for path in record.inputs if path.startswith("results/")]
        assert all(Path(folder, name).stat().st_mtime >= max(inputs, default=0) for name in tracked)


def test_the_costs_count_them(here, second):
    taken = Counter(provenance.read(Path(each, provenance.NAME)).stage for each, _ in reused(second))
    rows = {row["name"]: row for row in json.loads(Path("results/second/paper/costs/costs.json").read_bytes())["stage"]}
    assert {name: row["reused"] for name, row in rows.items() if row["reused"]} == {**taken, "all": taken.total()}
    assert rows["all"]["done"] == len(computed(second))
    assert rows["all"]["reused_hours"] > 0
    assert " reused |" in Path("results/second/paper/costs/costs.md").read_text()
    assert f"{taken['sft']} reused" in Path("results/second/paper/page/report.html").read_text()


def test_the_suite_stands_without_the_other(here, second, capsys):
    Path("results/glance").rename("results-of-glance")
    for status in (["why", "--suite", "second", "table1: SFT, WebShop"], ["view", "--suite", "second"]):
        assert exit_status(*status) == 0
    text = capsys.readouterr().out
    assert "all as they were" in text and f"reused from results/glance/{TARGET}" in text
    third = run("third", "--reuse", target=RECORDS)
    Path("results-of-glance").rename("results/glance")
    assert computed(third) == []
    assert dict(reused(third))[f"results/third/{TARGET}"] == f"results/glance/{TARGET}", "computed there"


@pytest.fixture
def alone(made, tmp_path):
    """A copy of the finished suite alone, which a test may damage."""
    folder = shutil.copytree(made, tmp_path / "run", symlinks=True)
    (folder / "configs/third.yaml").write_text(THIRD)
    with contextlib.chdir(folder):
        yield folder


DAMAGES = {
    "changed": lambda experts, record: experts.write_text(experts.read_text() + "\n"),
    "missing": lambda experts, record: experts.unlink(),
    "no provenance": lambda experts, record: record.unlink(),
    "unreadable provenance": lambda experts, record: record.write_text("{}"),
    "other name": lambda experts, record: record.write_text(
        record.read_text().replace('"sft.jsonl"', '"../webshop/sft.jsonl"')
    ),
}


def test_a_result_that_is_not_as_its_provenance_says_is_not_taken(alone):
    source, out = Path("results/glance/data/webshop"), Path("results/third/data/webshop")
    before = provenance.read(source / provenance.NAME).outputs
    whole = shutil.copytree(source, "whole")
    for damage, apply in DAMAGES.items():
        apply(source / "sft.jsonl", source / provenance.NAME)
        assert computed(run("third", "--reuse", target="data/webshop/sft.jsonl")) == [str(out)], damage
        assert provenance.read(out / provenance.NAME).outputs == before
        for folder in (source, out):
            shutil.rmtree(folder)
        shutil.copytree(whole, source)


def test_other_settings_code_or_inputs_are_another_result(alone):
    """Each of them alone, in the other suite's provenance, which says otherwise that all is equal."""
    record = Path("results/glance/prepared/webshop", provenance.NAME)
    made = provenance.read(record)
    others = {"config_digest": "0" * 16, "code_digest": "0" * 16, "seeds": {"suite": 1, "job": 1}, "protocol": "paper"}
    others["inputs"] = {"data/webshop/other.txt": "0" * 64}
    for name, value in others.items():
        record.write_text(made.model_copy(update={name: value}).to_json())
        assert len(computed(run("third", "--reuse", target="prepared/webshop/meta.json"))) == 1, name
        shutil.rmtree("results/third")
    record.write_text(made.to_json())
    assert computed(run("third", "--reuse", target="prepared/webshop/meta.json")) == []


def test_nothing_is_taken_without_the_flag_or_to_a_folder_outside(alone):
    assert len(computed(run("third", "--no-reuse", target="prepared/webshop/meta.json"))) == 1
    plan = Plan(load_suite("third"))
    job = plan.job("results/third/prepared/webshop/meta.json")
    command = stage_command((job.stage.name, job.wildcards), "third", "prepared", job.inputs, ["--reuse"])
    assert exit_status(*command) == 0
    assert provenance.read(Path("prepared", provenance.NAME)).reused_from is None


def test_a_job_of_several_processes_is_not_launched(here, second):
    """The file of the launch does not exist: a launch would end in its sentence."""
    run("third", "--reuse", target="tiny/webshop/base/pretrained/policy/target/policy.json")
    flags = ("--reuse", "--processes", "2", "--launch", "nowhere.yaml")
    assert computed(run("third", *flags, target=f"{TARGET}/policy.json")) == []


def test_a_result_that_is_replaced_at_that_moment_is_taken_whole_or_not_at_all(alone, tmp_path):
    """Threads keep replacing the result by one of other bytes, or deleting it, while it is taken many times."""
    source, out = Path("results/glance/data/webshop"), Path("results/third/data/webshop")
    made = provenance.read(source / provenance.NAME)
    stop, taken = threading.Event(), Counter()

    def replace():
        for number in itertools.count():
            if stop.is_set():
                return
            with folders.directory(source) as folder:
                contents = {name: f"{number} {name}\n".encode() * 1000 for name in made.outputs}
                for name, content in contents.items():
                    (folder / name).write_bytes(content)
                hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
                (folder / provenance.NAME).write_text(made.model_copy(update={"outputs": hashes}).to_json())

    record = {name: getattr(made, name) for name in Provenance.model_fields if name not in ("outputs", "reused_from")}
    record["inputs"] = {path.replace("results/glance", "results/third"): sha for path, sha in made.inputs.items()}
    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for _ in range(200):
            taken[took := take(record, out, [*STAGES["data"].files, provenance.NAME])] += 1
            if took:
                outputs = provenance.read(out / provenance.NAME).outputs
                assert outputs == {name: files.sha256(out / name) for name in made.outputs}
                shutil.rmtree(out)
            assert not out.exists()
    finally:
        stop.set()
        thread.join()
    assert taken[True] and taken[False], taken
