"""Which server is found, and how `envs_setup/mysql.sh` puts one into the cache."""

import hashlib
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from coevolve.envs.intercode_sql.config import SqlServerConfig
from coevolve.envs.intercode_sql.server_program import DEFAULT_CONFIG, ServerProgram, find_server_program, parse_version
from coevolve.errors import UserError


def config(*flavours: str, binary: str | None = None) -> SqlServerConfig:
    return DEFAULT_CONFIG.model_copy(update={"binary": binary, "engine": list(flavours)})


@pytest.fixture
def installed() -> dict[str, ServerProgram]:
    """The servers of this machine by flavour; two are needed to see which is preferred."""
    try:
        return {flavour: find_server_program(config(flavour)) for flavour in ("mysql", "mariadb")}
    except UserError as error:
        pytest.skip(f"{error} Both are needed here.")


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder at the front of PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def wrap(program: ServerProgram, path: Path) -> str:
    """Make `path` a command for a server that needs a loader of its own."""
    path.write_text(f'#!/bin/sh\nexec {shlex.join(program.command)} "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9.7.4-2 for Linux on x86_64 ((Debian))", ("mysql", "9.7.4")),
        ("8.0.46", ("mysql", "8.0.46")),
        ("10.11.18-MariaDB-0+deb12u1 for debian-linux-gnu", ("mariadb", "10.11.18")),
    ],
)
def test_flavour_and_version_are_read(text: str, expected: tuple[str, str]) -> None:
    assert parse_version(text) == expected


def test_mysql_is_taken_before_mariadb_unless_the_config_says_otherwise(installed) -> None:
    assert find_server_program(config("mysql", "mariadb")) == installed["mysql"]
    assert find_server_program(config("mariadb", "mysql")) == installed["mariadb"]
    assert find_server_program(config("mariadb")).flavour == "mariadb"


def test_results_on_mariadb_are_marked(installed) -> None:
    assert installed["mysql"].identity() == f"MySQL {installed['mysql'].version}"
    assert installed["mariadb"].identity() == f"MariaDB {installed['mariadb'].version}, non-comparable"


def test_a_server_on_path_is_taken_before_the_cache(installed, bin_folder: Path) -> None:
    program = wrap(installed["mysql"], bin_folder / "mysqld")
    program_found = find_server_program(config("mysql", "mariadb"))
    assert (program_found.command, program_found.version) == ((program,), installed["mysql"].version)


def test_mysql_in_the_cache_is_taken_before_mariadb_on_path(installed, bin_folder: Path) -> None:
    wrap(installed["mariadb"], bin_folder / "mariadbd")
    wrap(installed["mariadb"], bin_folder / "mysqld")
    assert find_server_program(config("mysql", "mariadb")) == installed["mysql"]


def test_a_named_program_is_the_one_that_runs(installed, tmp_path: Path) -> None:
    program = wrap(installed["mariadb"], tmp_path / "mysql-9.9.9")
    program_found = find_server_program(config("mysql", "mariadb", binary=program))
    assert (program_found.command, program_found.flavour, program_found.version) == (
        (program,),
        "mariadb",
        installed["mariadb"].version,
    )
    with pytest.raises(UserError, match=r"server\.engine"):
        find_server_program(config("mysql", binary=program))


@pytest.mark.parametrize(
    ("binary", "words"), [("/no/such/mysqld", "is not an executable"), ("true", "is not a version")]
)
def test_a_named_program_that_is_no_server_is_the_users_error(binary: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        find_server_program(config("mysql", binary=binary))


def test_no_server_at_all_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COEVOLVE_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("COEVOLVE_SERVERS", raising=False)
    with pytest.raises(UserError, match=r"no MySQL or MariaDB on PATH .*envs_setup/mysql\.sh"):
        find_server_program(config("mysql", "mariadb"))


@pytest.fixture
def install(root: Path, tmp_path: Path):
    """Runs the installer on .debs from `mirror`, never from the network."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb: this machine's servers are installed in another way")
    environment = {**os.environ, "COEVOLVE_CACHE": str(tmp_path / "cache"), "COEVOLVE_MIRROR": str(tmp_path / "mirror")}
    environment.pop("COEVOLVE_SERVERS", None)  # the images set it

    def run() -> subprocess.CompletedProcess[str]:
        script = root / "envs_setup" / "mysql.sh"
        return subprocess.run([script], env=environment, capture_output=True, text=True, timeout=60)

    return run


def package(folder: Path, program: str) -> Path:
    """A small .debian package in `folder` that holds `program` and something a server does not need."""
    tree = folder / "tree"
    for name in (f"usr/sbin/{program}", "usr/bin/tool", "lib/x/libx.so"):
        (tree / name).parent.mkdir(parents=True)
        (tree / name).write_text(name)
    (tree / "DEBIAN").mkdir()
    control = "Package: some-server\nVersion: 1.2-3\nArchitecture: all\nMaintainer: nobody <n@n>\nDescription: x\n"
    (tree / "DEBIAN" / "control").write_text(control)
    subprocess.run(["dpkg-deb", "--build", tree, folder / "x.deb"], check=True, capture_output=True)
    return folder / "x.deb"


def test_packages_of_a_mirror_are_unpacked_once_and_listed(install, tmp_path: Path) -> None:
    packages = {name: package(tmp_path / "mirror" / name, f"{name}d") for name in ("mysql", "mariadb")}
    first = install()
    assert first.returncode == 0, first.stderr
    servers = tmp_path / "cache" / "servers"
    for name, deb in packages.items():
        home = servers / name
        assert (home / "usr" / "sbin" / f"{name}d").read_text() == f"usr/sbin/{name}d"
        assert (home / "usr" / "lib" / "x" / "libx.so").exists()
        assert not (home / "usr" / "bin" / "tool").exists()
        digest = hashlib.sha256(deb.read_bytes()).hexdigest()
        assert (home / "manifest.tsv").read_text() == f"some-server\t1.2-3\t{digest}\n"
    before = {path: path.stat().st_mtime_ns for path in servers.rglob("*")}
    assert install().returncode == 0
    assert {path: path.stat().st_mtime_ns for path in servers.rglob("*")} == before


def test_without_mysql_the_installer_goes_on_with_mariadb(install, tmp_path: Path) -> None:
    package(tmp_path / "mirror" / "mysql", "mysqld").write_bytes(b"torn")
    package(tmp_path / "mirror" / "mariadb", "mariadbd")
    done = install()
    assert done.returncode == 0
    assert "MySQL could not be had; going on with MariaDB" in done.stderr
    assert sorted(path.name for path in (tmp_path / "cache" / "servers").glob("[!.]*")) == ["mariadb"]
    assert not list((tmp_path / "cache" / "servers").glob(".*.tmp"))


@pytest.mark.parametrize(("present", "code"), [((), 1), (("mysqld",), 0), (("apt-get",), 1)])
def test_without_apt_a_server_on_path_is_enough(
    root: Path, tmp_path: Path, present: tuple[str, ...], code: int
) -> None:
    for name in present:
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": str(tmp_path), "COEVOLVE_CACHE": str(tmp_path / "cache")}
    script = root / "envs_setup" / "mysql.sh"
    done = subprocess.run([script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert ("no apt here" if code else "the mysqld on PATH will be taken") in done.stderr
    assert not (tmp_path / "cache").exists()


@pytest.mark.skipif(shutil.which("mysqld") is not None, reason="this machine has a mysqld on PATH, which is enough")
def test_without_any_server_the_installer_fails_in_one_sentence(install, tmp_path: Path) -> None:
    for name in ("mysql", "mariadb"):
        package(tmp_path / "mirror" / name, f"{name}d").write_bytes(b"torn")
    done = install()
    assert done.returncode != 0
    assert "no server could be had" in done.stderr.splitlines()[-1]
