"""OpenEnv's server, in an environment of its own: episodes through it equal direct play byte for byte."""

import json
import os
import socket
import subprocess
import time
import urllib.request

import pytest
from adapters.played_sessions import shop_scripts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def folder(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(root / "configs")
    return tmp_path


def ask(url, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


@pytest.fixture
def server(root, folder, other_environment):
    python = other_environment("openenv")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python.path, "-m", "coevolve.adapters.openenv_server", "--env", "webshop-small", "--port", str(port)]
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(root)})
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None
            try:
                ask(url, "/health")
                break
            except OSError:
                time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait()


def test_episodes_side_by_side_equal_direct_play(root, folder, server, other_environment):
    scripts, tasks = shop_scripts(6)
    (folder / "scripts.json").write_text(json.dumps(scripts))
    client = root / "tests/adapters/openenv_client.py"
    answers = json.loads(other_environment("openenv")(str(client), server, str(folder / "scripts.json")))
    for script, answer in zip(scripts, answers, strict=True):
        seen = [[text, reward or 0.0, done] for text, reward, done in answer["seen"]]
        assert json.dumps(seen) == json.dumps(script["seen"])
        assert sum(reward for _, reward, _ in seen) == pytest.approx(script["total"])
        assert answer["steps"] == len(script["texts"])
    assert any(script["total"] > 0 for script in scripts)
    splits = ask(server, "/webshop-small/splits")
    assert [split["name"] for split in splits] == list(tasks) == ["train", "test"]
