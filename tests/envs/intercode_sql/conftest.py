"""A real server on the real databases, shared by tests that do not break it."""

import contextlib

import pytest
import yaml

from coevolve.assets.settings import Source
from coevolve.envs.intercode_sql.server import DatabaseServer
from coevolve.envs.intercode_sql.server_program import DEFAULT_CONFIG
from coevolve.envs.intercode_sql.session import SqlSession
from coevolve.storage.files import verified


@pytest.fixture(scope="session")
def dump(root, upstream):
    """The dump of the twenty databases: the downloaded one, or else the same bytes out of `tests/data`."""
    source = Source(**yaml.safe_load((root / "configs/parts/sources.yaml").read_text())["sources"]["spider"])
    path = root / "data" / "mirror" / "spider" / source.file
    packed = upstream / "intercode/ic_spider_dbs.sql"
    return path if path.exists() else verified(packed, source.sha256, "sources.spider")


@pytest.fixture(scope="session")
def server(dump):
    """A server for tests that leave it alive."""
    with DatabaseServer(DEFAULT_CONFIG, dump) as server:
        yield server


@pytest.fixture
def attacker(limited):
    """A session on the server that a module calls `limited`."""
    with contextlib.closing(SqlSession(limited)) as session:
        session.use("world_1")
        yield session


@pytest.fixture
def neighbour(limited):
    """Another one in the middle of an episode, with a variable that only it knows."""
    with contextlib.closing(SqlSession(limited)) as session:
        session.use("world_1")
        session.execute("SET @mine = 42")
        yield session


@pytest.fixture
def own_server(dump):
    """Makes servers that a test may break, with keys of the configuration replaced; they are closed at its end."""
    with contextlib.ExitStack() as stack:
        yield lambda **changes: stack.enter_context(
            DatabaseServer(DEFAULT_CONFIG.model_copy(update=changes), dump),
        )
