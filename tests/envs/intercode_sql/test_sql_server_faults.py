"""Servers that break, and places where none can be made: each ends in a restart or one clear sentence."""

import os
import resource
import shutil
import signal
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pymysql
import pytest
from envs.endings import ending
from envs.intercode_sql.sections import START_SERVER, folder

from coevolve.envs.base import EnvError
from coevolve.envs.intercode_sql.data_directory import DataDirectoryTemplate
from coevolve.envs.intercode_sql.server import DatabaseServer
from coevolve.envs.intercode_sql.server_program import DEFAULT_CONFIG, cache_directory, find_server_program
from coevolve.errors import UserError

SMALL_MB = 48
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small disk or run as somebody else")


def cities(server):
    with server.connect("world_1") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM city")
        return cursor.fetchall()[0][0]


def supervisor(server):
    return psutil.Process(server.pid).parent()


def end_and_wait(server, end):
    """Call `end` and wait until the server has ended; until then it may accept a connection."""
    process = psutil.Process(server.pid)
    end()
    process.wait()


def remove_folder(server):
    """Remove the folder of `server`, which is suspended meanwhile: it must make no file in what is being removed."""
    process = psutil.Process(server.pid)
    process.suspend()
    shutil.rmtree(folder(server))
    process.resume()


@pytest.mark.parametrize(
    "breaks",
    [
        lambda server: end_and_wait(server, psutil.Process(server.pid).terminate),
        lambda server: end_and_wait(server, supervisor(server).kill),
        lambda server: os.kill(server.pid, signal.SIGKILL),
        lambda server: (folder(server) / "mysqld.sock").unlink(),
        remove_folder,
    ],
    ids=["shut down", "supervisor killed", "killed", "socket removed", "directory removed"],
)
def test_a_broken_server_is_replaced_at_the_next_connection(own_server, breaks):
    server = own_server()
    connection = server.connect("world_1")
    first, directory = psutil.Process(server.pid), folder(server)
    breaks(server)
    assert cities(server) == 4079
    assert server.pid != first.pid
    psutil.wait_procs([first])
    assert not directory.exists()
    with pytest.raises(pymysql.MySQLError), connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def test_a_hung_server_is_replaced_within_its_time_limit(own_server):
    server = own_server(statement_seconds=1.0)
    server.connect().close()
    hung = server.pid
    os.kill(hung, signal.SIGSTOP)
    assert cities(server) == 4079
    assert not psutil.pid_exists(hung)


@pytest.fixture
def cache(monkeypatch):
    """A cache with this machine's servers and no template; open to the server's user, unlike pytest's own folders."""
    servers = cache_directory() / "servers"
    made = Path(tempfile.mkdtemp(prefix="coevolve-test-"))
    made.chmod(0o755)
    (made / "servers").symlink_to(servers)
    monkeypatch.setenv("COEVOLVE_CACHE", str(made))
    yield made
    shutil.rmtree(made)


def templates(cache):
    """What is in the cache but locks."""
    return sorted(path.name for path in (cache / "templates").iterdir() if path.suffix != ".lock")


def copy_template(cache, dump):
    """Copy the template of `dump` from this machine's cache, if it is there: to build one takes as long as a test."""
    template = DataDirectoryTemplate(find_server_program(DEFAULT_CONFIG), dump).path
    built = (cache / "servers").readlink().parent / "templates" / template.name
    if built.is_dir():
        template.parent.mkdir()
        subprocess.run(["cp", "--archive", built, template], check=True)


def test_a_damaged_template_is_made_again(own_server, dump, cache):
    copy_template(cache, dump)
    with own_server() as server:
        assert cities(server) == 4079
    (name,) = templates(cache)
    data = cache / "templates" / name / "data"
    cut_short, unreadable = data / "ibdata1", data / "world_1" / "city.ibd"
    for damaged, size in ((cut_short, 100), (unreadable, unreadable.stat().st_size)):
        damaged.write_bytes(bytes(size))
        with own_server() as server:
            assert cities(server) == 4079
        assert templates(cache) == [name]


def test_a_server_that_never_starts_is_one_sentence_with_its_last_words(own_server, cache):
    program = cache / "mysqld"
    program.write_text(
        '#!/bin/sh\ncase "$*" in *--version*) echo "mysqld  Ver 9.9.9";; *) echo "out of luck" >&2; exit 3;; esac\n'
    )
    program.chmod(0o755)
    with pytest.raises(EnvError, match=r"did not initialise .* \(return code 3\): out of luck"):
        own_server(binary=str(program)).connect()
    assert templates(cache) == []


def test_a_dump_longer_than_what_agents_may_send_is_loaded(cache, dump, tmp_path):
    long = tmp_path / "long.sql"
    long.write_text(dump.read_text(encoding="utf-8") + f"-- {'x' * 1_000}\n" * 2_000, encoding="utf-8")
    with DatabaseServer(DEFAULT_CONFIG, long) as server:
        assert cities(server) == 4079


def test_of_two_kits_at_once_one_makes_the_template(dump, cache):
    def kit(_):
        with ending(START_SERVER, "close", dump) as (process, _):
            return process.wait()

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(kit, range(2))] == [0, 0]
    assert len(templates(cache)) == 1


def test_a_disk_that_fills_up_leaves_nothing_behind(own_server, cache):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getpagesize() << 11, limits[1]))
    try:
        with pytest.raises(EnvError, match=r"^the database server did not initialise") as raised:
            own_server().connect()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(raised.value)
    assert templates(cache) == []


@pytest.fixture
def small_disk():
    """A file system with too little room for a server's data."""
    place = Path(tempfile.mkdtemp(prefix="coevolve-test-"))
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_MB}m,mode=1777", "tmpfs", place], check=False)
    if mounted.returncode:
        place.rmdir()
        pytest.skip("mount is not allowed here: no small disk can be made")
    yield place
    subprocess.run(["umount", place], check=True)
    place.rmdir()


@NEEDS_ROOT
def test_too_small_a_cache_is_the_users_error(own_server, cache, small_disk, monkeypatch):
    (small_disk / "servers").symlink_to(cache / "servers")
    monkeypatch.setenv("COEVOLVE_CACHE", str(small_disk))
    with pytest.raises(UserError, match=r"templates: \d+ MB are free, .* make room"):
        own_server().connect()
    assert templates(small_disk) == []


@NEEDS_ROOT
def test_too_small_a_place_for_the_data_is_the_users_error(own_server, small_disk, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    with pytest.raises(UserError, match="make room"):
        own_server().connect()
    assert not list(small_disk.iterdir())


def test_no_place_for_temporary_files_is_the_users_error(own_server, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "removed"))
    with pytest.raises(UserError, match=r"no directory for a server .* set TMPDIR"):
        own_server().connect()


@NEEDS_ROOT
def test_a_cache_closed_to_the_server_is_the_users_error(own_server, cache):
    cache.chmod(0o700)
    with pytest.raises(UserError, match="`nobody`, who cannot enter it"):
        own_server().connect()


def test_a_cache_that_cannot_be_made_is_the_users_error(own_server, cache):
    (cache / "templates").write_text("in the way")
    with pytest.raises(UserError, match="COEVOLVE_CACHE"):
        own_server().connect()
