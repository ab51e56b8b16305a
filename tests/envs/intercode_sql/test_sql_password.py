"""The password goes to no server that asks for it in the clear, unless the connection is a local socket."""

from pathlib import Path

import pytest
from envs.intercode_sql.fake_server import MESSAGES, serving

from coevolve.envs.base import EnvError
from coevolve.envs.intercode_sql.server import DatabaseServer
from coevolve.envs.intercode_sql.server_program import DEFAULT_CONFIG
from coevolve.errors import UserError

PASSWORD = b"a secret of mine"


@pytest.fixture(autouse=True)
def password(monkeypatch):
    monkeypatch.setenv("COEVOLVE_SQL_PASSWORD", PASSWORD.decode())


def connect(address):
    DatabaseServer(DEFAULT_CONFIG.model_copy(update={"address": address}), Path("no dump")).connect()


@pytest.mark.parametrize("method", MESSAGES)
def test_a_server_without_tls_that_asks_for_the_password_does_not_get_it(method):
    sentence = "asks for the password itself without TLS, so it is not sent; turn TLS on"
    with serving(method) as (address, got), pytest.raises(UserError, match=sentence):
        connect(address)
    assert b"user\0" in got and PASSWORD not in got


def test_a_server_at_a_local_socket_gets_it(tmp_path):
    # The server ends then.
    with serving("mysql_clear_password", tmp_path / "sock") as (address, got), pytest.raises(EnvError):
        connect(address)
    assert PASSWORD + b"\0" in got
