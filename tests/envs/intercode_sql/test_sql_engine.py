"""Which server is found, and what `envs_setup/mysql.sh` does without apt."""

import os
import shlex
import subprocess

import pytest

from coevolve.envs.intercode_sql.server_program import (
    DEFAULT_CONFIG,
    find_server_program,
    unpacked_servers,
)
from coevolve.errors import UserError


@pytest.fixture
def installed():
    """The server of this machine."""
    try:
        return find_server_program(DEFAULT_CONFIG)
    except UserError as error:
        pytest.skip(str(error))


def named(binary):
    return DEFAULT_CONFIG.model_copy(update={"binary": binary})


@pytest.fixture
def bin_folder(tmp_path, monkeypatch):
    """An empty folder at the front of PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def wrap(program, path):
    """Make `path` a command for a server that needs a loader of its own."""
    path.write_text(f'#!/bin/sh\nexec {shlex.join(program.command)} "$@"\n')
    path.chmod(0o755)
    return str(path)


def other_server(path):
    """Make `path` a command that names itself as another server does under the name `mysqld`."""
    path.write_text("#!/bin/sh\necho 'mysqld  Ver 10.11.18-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64'\n")
    path.chmod(0o755)
    return str(path)


def test_a_server_on_path_is_taken_before_the_cache_and_a_named_one_before_both(installed, bin_folder):
    program = wrap(installed, bin_folder / "mysqld")
    found = find_server_program(DEFAULT_CONFIG)
    assert (found.command, found.identity) == ((program,), installed.identity)
    other = wrap(installed, bin_folder / "mariadb-9.9.9")
    found = find_server_program(named(other))
    assert (found.command, found.identity) == ((other,), installed.identity)


def test_another_server_on_path_is_not_taken(installed, bin_folder):
    other_server(bin_folder / "mysqld")
    unpacked = (unpacked_servers() / "mysql").is_dir()
    if not unpacked:
        pytest.skip("the server of this machine is the one on PATH")
    assert find_server_program(DEFAULT_CONFIG) == installed


def test_a_named_program_that_is_no_mysql_is_the_users_error(tmp_path):
    cases = {"/no/such/mysqld": "is not an executable", "true": "is not MySQL"}
    for binary, words in {**cases, other_server(tmp_path / "mysqld"): "is not MySQL"}.items():
        with pytest.raises(UserError, match=words):
            find_server_program(named(binary))


def test_no_server_at_all_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("COEVOLVE_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("COEVOLVE_SERVERS", raising=False)
    with pytest.raises(UserError, match=r"no MySQL on PATH .*envs_setup/mysql\.sh"):
        find_server_program(DEFAULT_CONFIG)


@pytest.mark.parametrize(("present", "code"), [((), 1), (("mysqld",), 0), (("apt-get",), 1)])
def test_without_apt_a_server_on_path_is_enough(root, tmp_path, present, code):
    for name in present:
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": str(tmp_path), "COEVOLVE_CACHE": str(tmp_path / "cache")}
    script = root / "envs_setup" / "mysql.sh"
    done = subprocess.run([script], env=environment, capture_output=True, text=True)
    assert done.returncode == code
    assert ("no apt here" if code else "the mysqld on PATH will be taken") in done.stderr
    assert not (tmp_path / "cache").exists()
