"""A database server is unpacked before a run that needs one, and for no other; .debs come from a folder."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import copy_of, environment
from envs.intercode_sql.packages import package

from coevolve.config.loading import load_suite
from coevolve.envs import registry
from coevolve.envs.intercode_sql.config import COMMITTED_SERVER
from coevolve.storage import files


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A mirror with one package: a `mysqld` that only knows its version. Nothing else of a server is on PATH."""
    if shutil.which("dpkg-deb") is None or shutil.which("mysqld"):
        pytest.skip("no dpkg-deb here, or a server on PATH: nothing is unpacked")
    programs = ("usr/sbin/mysqld", "usr/bin/tool", "lib/x/libx.so", "usr/lib/x/ld-linux.so.2")
    package(tmp_path / "mirror/mysql", *programs, text="#!/bin/sh\necho mysqld  Ver 9.7.4 for Linux\n")
    monkeypatch.setenv("COEVOLVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COEVOLVE_MIRROR", str(tmp_path / "mirror"))
    monkeypatch.delenv("COEVOLVE_SERVERS", raising=False)
    return tmp_path / "mirror"


@pytest.fixture
def section(root, monkeypatch):
    monkeypatch.chdir(root)
    return load_suite("smoke").envs["intercode_sql"]


def test_a_missing_server_is_unpacked_once_and_listed(mirror, section, tmp_path):
    digest = files.sha256(mirror / "mysql/x.deb")
    registry.install([section])
    home = tmp_path / "cache/servers/mysql"
    made = {path: path.stat().st_mtime_ns for path in home.parent.rglob("*") if path.name != ".lock"}
    names = {str(path.relative_to(home)) for path in made if path.is_file()}
    assert names == {"manifest.tsv", "usr/sbin/mysqld", "usr/lib/x/libx.so", "usr/lib/x/ld-linux.so.2"}
    assert (home / "manifest.tsv").read_text() == f"some-server\t1.2-3\t{digest}\n"
    shutil.rmtree(mirror)
    registry.install([section])
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_a_shared_folder_of_servers_is_unpacked_to_and_then_only_read(mirror, section, root, tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    monkeypatch.setenv("COEVOLVE_SERVERS", str(shared))
    registry.install([section])
    assert (shared / "mysql/usr/sbin/mysqld").is_file() and not (tmp_path / "cache").exists()
    (shared / ".lock").unlink()
    (shared / ".lock").mkdir()  # as if it belonged to somebody else
    done = subprocess.run([root / "envs_setup/mysql.sh"], capture_output=True, text=True, check=True)
    assert f"mysql is in {shared}/mysql" in done.stderr
    shutil.rmtree(shared / "mysql")
    done = subprocess.run([root / "envs_setup/mysql.sh"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"cannot write to {shared}; set COEVOLVE_SERVERS" in done.stderr


def test_a_server_that_the_suite_names_is_not_unpacked(mirror, section, tmp_path):
    server = section.server.model_copy(update={"binary": "/on/the/nodes/mysqld"})  # type: ignore[attr-defined]
    registry.install([section.model_copy(update={"server": server})])
    assert not (tmp_path / "cache").exists()


def test_only_a_run_that_needs_a_server_unpacks_one(mirror, root, tmp_path):
    repo = copy_of(root, tmp_path / "repo")
    (mirror / "mysql/x.deb").write_bytes(b"torn")
    installer = subprocess.run([root / "envs_setup/mysql.sh"], capture_output=True, text=True, check=False)
    assert installer.returncode != 0 and "no server could be had" in installer.stderr.splitlines()[-1]
    assert not list((tmp_path / "cache/servers").glob(".*.tmp"))
    (tmp_path / "cache/servers/.lock").unlink()
    (tmp_path / "cache/servers").rmdir()

    def snakemake(env):
        target = f"results/smoke/data/{env}/explore.jsonl"
        command = [sys.executable, "-m", "snakemake", "--profile", "smoke", "--", target]
        return subprocess.run(command, cwd=repo, env=environment(repo), capture_output=True, text=True, check=False)

    assert snakemake("sciworld").returncode == 0
    assert not (tmp_path / "cache/servers").exists()
    done = snakemake("intercode_sql")
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith(f"coevolve: no MySQL on PATH or in {tmp_path}/cache/servers; run ")
    assert not (repo / "results/smoke/data/intercode_sql").exists()


@pytest.fixture
def bare(root, tmp_path):
    """A copy of the kit, and variables of a machine without apt, dpkg and a database server."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in map(Path, os.environ["PATH"].split(os.pathsep)):
        for program in folder.iterdir() if folder.is_dir() else ():
            if not program.name.startswith(("apt", "dpkg", "mysqld")) and not (programs / program.name).exists():
                (programs / program.name).symlink_to(program)
    repo = copy_of(root, tmp_path / "repo")
    variables = environment(repo) | {"PATH": str(programs), "COEVOLVE_CACHE": str(tmp_path / "none")}
    variables.pop("COEVOLVE_SERVERS", None)
    return repo, variables


def test_without_a_server_a_run_leaves_the_environment_out_and_the_table_says_so(bare):
    repo, variables = bare
    assert subprocess.run([repo / "envs_setup/mysql.sh"], env=variables, check=False).returncode == 1
    small = ["methods=[untrained]", "without=[intercode_sql, sciworld]"]
    command = [sys.executable, "-m", "snakemake", "--profile", "smoke", "--config", *small, "--", "table1"]
    done = subprocess.run(command, cwd=repo, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = (repo / "results/smoke/paper/table1/table1.md").read_text()
    assert "Left out: `intercode_sql`, `sciworld`." in table and "config suite=smoke` adds it" in table
    assert "InterCodeSQL" not in table and "| Untrained" in table


def test_another_version_than_that_of_the_committed_results_is_named(root, section):
    tables = [path.read_text() for path in (root / "results/reference").glob("*/table1.md")]
    assert {name for table in tables for name in re.findall(r"MySQL [\d.]+\d", table)} == {COMMITTED_SERVER}
    assert section.other_version(f"{COMMITTED_SERVER} (rows 1)") == section.other_version("") == ""
    assert section.other_version("MySQL 8.0.30 (rows 1)").startswith("InterCodeSQL: MySQL 8.0.30; the committed ")


def test_make_setup_needs_no_apt_and_the_tests_have_a_server(root):
    def commands(target):
        command = ["make", "--always-make", "--dry-run", target]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout

    assert "mysql.sh" not in commands("setup") and "mysql.sh" not in commands("micro")
    assert "envs_setup/mysql.sh" in commands("test")
    assert "\npart envs_setup/mysql.sh\npart make smoke\n" in (root / ".ci/run").read_text()
