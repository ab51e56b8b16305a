"""What a suite needs from outside: all of it listed, found in place or in a mirror, and checked byte for byte."""

import os
from pathlib import Path

import pytest

from coevolve.assets import hub
from coevolve.config.loading import load_suite
from coevolve.pipeline import required_files
from coevolve.storage import files

REVISION = "0123456789abcdef0123456789abcdef01234567"
DUMP = b"CREATE TABLE a (b int);\n"


@pytest.fixture
def suite(root, tmp_path, monkeypatch):
    """A suite with a file to download, one put there by hand and a model of the hub, in an empty folder."""
    (tmp_path / "check").write_bytes(DUMP)
    sha256 = files.sha256(tmp_path / "check")
    loaded = load_suite(
        root / "configs/suites/smoke.yaml",
        [
            f"envs.intercode_sql.dump.sha256='{sha256}'",
            f"envs.sciworld.experts.sha256='{sha256}'",
            "envs.sciworld.experts.path=data/mirror/mine.jsonl",
            *(f"models.tiny.{key}=null" for key in ("tiny", "pretrain")),
            "models.tiny.hub=owner/tiny",
            "models.tiny.parameters=1000.0",
            f"models.tiny.revision='{REVISION}'",
        ],
    )
    monkeypatch.chdir(tmp_path)
    return loaded


def fill(place, *files):
    for name in files:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(DUMP)


def model(folder):
    """Files that look like a model, and their manifest."""
    fill(folder, "config.json", "tokenizer.json", "model.safetensors")
    listed = tuple(
        hub.ModelFile(name=path.name, bytes=path.stat().st_size, sha256=files.sha256(path))
        for path in sorted(folder.iterdir())
    )
    manifest = hub.Manifest(hub="owner/tiny", revision=REVISION, files=listed)
    (folder / hub.MANIFEST).write_text(manifest.to_json())
    return folder / hub.MANIFEST


def statuses(suite, root=Path("data/mirror"), *, thorough=True):
    return {check.name: check for check in required_files.verify(suite, "airgap", root, thorough=thorough)}


def test_everything_is_listed_with_where_it_comes_from(suite):
    listed = {need.path: str(need) for need in required_files.required_files(suite)}
    assert set(listed) == {
        "data/mirror/spider/spider_dev.sql", "data/mirror/mine.jsonl", "data/mirror/models/tiny/manifest.json"
    }  # fmt: skip
    dump = listed["data/mirror/spider/spider_dev.sql"]
    for words in ("pip's intercode-bench==0.1.22", suite.envs["intercode_sql"].dump.sha256, "CC BY-SA 4.0"):  # type: ignore[union-attr]
        assert words in dump
    assert f"huggingface.co/owner/tiny/tree/{REVISION}" in listed["data/mirror/models/tiny/manifest.json"]


def test_what_is_missing_or_changed_is_named_and_what_is_there_is_ok_in_place(suite):
    found = statuses(suite)
    assert {check.status for check in found.values()} == {"missing"}
    assert "--until download snapshot` on a machine with a network" in found["models.tiny"].text
    assert "run `snakemake" not in found["envs.sciworld.experts"].text
    place = Path("data/mirror")
    fill(place, "spider/spider_dev.sql", "mine.jsonl")
    model(place / "models/tiny")
    assert {check.status for check in statuses(suite).values()} == {"ok"}
    assert {check.status for check in statuses(suite, Path("elsewhere")).values()} == {"missing"}
    (place / "mine.jsonl").write_bytes(DUMP[:-1] + b"x")
    (place / "models/tiny/model.safetensors").write_bytes(DUMP[:-1] + b"x")
    found = statuses(suite)
    assert {name: check.status for name, check in found.items()} == {
        "envs.intercode_sql.dump": "ok", "envs.sciworld.experts": "wrong", "models.tiny": "wrong",
    }  # fmt: skip
    assert "data/mirror/mine.jsonl: sha256 is" in found["envs.sciworld.experts"].text
    assert "model.safetensors: sha256 is" in found["models.tiny"].text


def test_what_is_there_is_ok_in_a_mirror_filled_by_hand(suite):
    elsewhere = Path("elsewhere")
    fill(elsewhere, "spider_dev.sql", "mine.jsonl")
    manifest = model(elsewhere / hub.mirror_path("owner/tiny", REVISION))
    manifest.unlink()
    found = statuses(suite, elsewhere)
    assert {check.status for check in found.values()} == {"ok"}
    assert "hashed when a job first reads them" in found["models.tiny"].text
    manifest.with_name("model.safetensors").unlink()
    assert "no *.safetensors" in statuses(suite, elsewhere)["models.tiny"].text


def test_a_quick_look_hashes_no_large_file_that_is_older_than_its_hash(suite, root, monkeypatch):
    monkeypatch.setattr(required_files, "SMALL_BYTES", 4)
    path = Path("data/mirror/spider/spider_dev.sql")
    fill(path.parent, path.name)
    record = _provenance(root, path)
    path.write_bytes(DUMP[:-1] + b"x")
    os.utime(path, (1, 1))
    assert "unchanged since it was hashed" in statuses(suite, thorough=False)["envs.intercode_sql.dump"].text
    assert statuses(suite)["envs.intercode_sql.dump"].status == "wrong"
    os.utime(record, (0, 0))
    assert statuses(suite, thorough=False)["envs.intercode_sql.dump"].status == "wrong"


def _provenance(root, path):
    """A real provenance, of this file."""
    record = (root / "results/reference/micro/provenance.json").read_text()
    found = required_files.Provenance.from_json(record).model_copy(update={"outputs": {path.name: files.sha256(path)}})
    beside = path.with_name("provenance.json")
    beside.write_text(found.to_json())
    return beside


def test_the_command_fails_with_one_sentence_a_problem(root, tmp_path, monkeypatch, coevolve):
    monkeypatch.chdir(root)
    _, listed, _ = coevolve("mirror", "list", "--suite", "paper")
    assert "sciworld_sft.json" in listed and "Llama-2-7b-chat-hf" in listed
    status, printed, _ = coevolve("mirror", "verify", "--suite", "paper", "--root", tmp_path)
    lines = printed.splitlines()
    required = required_files.required_files(load_suite(root / "configs/suites/paper.yaml"))
    assert status == 1 and [line.partition(":")[0] for line in lines] == [f"missing {file.key}" for file in required]
    assert all(line.endswith(".") for line in lines)


def test_a_model_behind_an_endpoint_is_no_file(root):
    asked, paper = (required_files.required_files(load_suite(name)) for name in ("in_context", "paper"))
    assert [file.key for file in asked] == [file.key for file in paper]
    assert {file.key.partition(".")[0] for file in asked} == {"envs", "models"}
