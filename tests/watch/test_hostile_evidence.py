"""Evidence of a stranger: checking it runs no program that it names, and ends soon."""

import json
import os
import tarfile

import pytest
from builders import episode

from coevolve.config.loading import load_suite
from coevolve.config.restriction import as_dict
from coevolve.records.provenance import Provenance
from coevolve.storage import files, jsonl, provenance
from coevolve.watch import reverify as module

SERVER = "envs.intercode_sql.server"


@pytest.fixture
def reverify(coevolve, tmp_path, monkeypatch):
    """Checks evidence whose provenance has changed keys, in an empty folder, on a machine without a database server."""
    (tmp_path / "evidence").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("COEVOLVE_CACHE", "COEVOLVE_SERVERS"):
        monkeypatch.setenv(name, str(tmp_path / name))
    (tmp_path / "dump.sql").write_text("CREATE DATABASE `a`;\n")

    def check(env, change, *options):
        config = as_dict(load_suite("smoke"))
        section = json.loads(json.dumps(config["envs"][env]))
        change(section)
        config = {key: config[key] for key in ("protocols", "rollout")} | {"envs": {env: section}}
        jsonl.write(tmp_path / "evidence/episodes.jsonl", [episode(env=env)])
        sha256 = files.sha256(tmp_path / "evidence/episodes.jsonl")
        texts = dict.fromkeys(("config_digest", "code_digest", "commit", "container", "started"), "")
        meta = {"results/x/prepared/webshop/meta.json": "0" * 64}
        record = Provenance(
            **texts, stage="rollout", config=config, dirty=None, protocol="fixed", seeds={}, versions={}, inputs=meta,
            outputs={"episodes.jsonl": sha256}, seconds=0.0,
        )  # fmt: skip
        (tmp_path / "evidence" / provenance.NAME).write_text(record.to_json())
        _, printed, errors = coevolve("reverify", "evidence", "--cache", tmp_path / "cache", "--json", *options)
        (outcome,) = json.loads(printed)["files"] if printed else [errors]
        assert outcome["status"] == "unchecked"
        return outcome["how"]

    return check


def sql(path, **server):
    def change(section):
        section["dump"] = {"path": "dump.sql", "sha256": files.sha256(path / "dump.sql")}
        section["server"] |= server

    return change


def test_a_program_that_evidence_names_is_not_run_and_ones_own_is(reverify, tmp_path):
    program, was_run = tmp_path / "program", tmp_path / "was_run"
    program.write_text(f"#!/bin/sh\ntouch {was_run}\n")
    program.chmod(0o755)
    reason = reverify("intercode_sql", sql(tmp_path, binary=str(program)))
    assert not was_run.exists() and str(program) not in reason
    reason = reverify("intercode_sql", sql(tmp_path), "--set", f"{SERVER}.binary={program}")
    assert was_run.exists() and f"`server.binary`: {program} is not MySQL" in reason


def test_a_generated_catalogue_of_any_size_is_refused(reverify):
    reason = reverify("webshop", lambda section: section["catalogue"].update(generated=10**12))
    assert reason.startswith("`envs.webshop.catalogue.generated` is 1000000000000, more than the 100,000 that a record")
    reason = reverify("webshop", lambda section: None, "--set", "envs.webshop.catalogue.generated=20")
    assert "what is prepared here from the same settings is not" in reason


def test_a_file_elsewhere_is_read_where_who_checks_says_so(reverify, tmp_path):
    def change(section):
        section["dump"] = {"path": "/nowhere/dump.sql", "sha256": files.sha256(tmp_path / "dump.sql")}

    key = "envs.intercode_sql.dump.path"
    assert f"`{key}`: /nowhere/dump.sql is not below the folder of this command" in reverify("intercode_sql", change)
    given = ("--set", f"{key}={tmp_path / 'dump.sql'}", "--set", f"{SERVER}.binary=no_such_program")
    assert "`server.binary`: no_such_program is not an executable" in reverify("intercode_sql", change, *given)


def test_an_archive_is_unpacked_up_to_a_bound(coevolve, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_ARCHIVE_BYTES", 1 << 20)
    with (tmp_path / "large").open("wb") as file:
        os.truncate(file.fileno(), (1 << 20) + 1)
    with tarfile.open(tmp_path / "evidence.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "large", "large")
    status, _, error = coevolve("reverify", tmp_path / "evidence.tar.xz", "--cache", tmp_path / "cache")
    assert status == 2 and "files are larger than 1,048,576 bytes together; unpack it, and name the folder." in error
