"""OpenEnv's server, in an environment of its own: episodes through it equal direct play byte for byte."""

import contextlib
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from adapters.played_sessions import ENVS, expert_scripts, lay_out

import coevolve
from coevolve.adapters.sessions import open_sessions

pytestmark = pytest.mark.slow


def ask(url, path, question=None):
    data = None if question is None else json.dumps(question).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url + path, data, headers)) as answer:
        return json.load(answer)


def answers_of(url, path, question):
    """The status of an answer, and its sentence if it is a refusal."""
    try:
        return 200, ask(url, path, question)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["detail"]


@contextlib.contextmanager
def serving(python, root, env, *options):
    """The address of a server of `env`, in the current folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python.path, "-m", "coevolve.adapters.openenv_server", "--port", str(port), *options]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(root), "COEVOLVE_ENV": env})
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
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


@pytest.mark.parametrize("env", ENVS)
def test_episodes_side_by_side_equal_direct_play(env, root, tmp_path, monkeypatch, upstream, other_environment):
    lay_out(root, tmp_path, upstream)
    monkeypatch.chdir(tmp_path)
    scripts, tasks = expert_scripts(env, 5)
    assert len(scripts) == 6 and max(script["total"] for script in scripts) > 0
    (tmp_path / "scripts.json").write_text(json.dumps(scripts))
    python = other_environment("openenv", "bfcl")
    client = root / "tests/adapters/openenv_client.py"
    with serving(python, root, env) as url:
        variables = {**os.environ, "PYTHONPATH": str(root)}
        answers = json.loads(python(str(client), url, str(tmp_path / "scripts.json"), env=variables))
        splits, metadata = ask(url, f"/{env}/splits"), ask(url, "/metadata")
        listed = ask(url, f"/{env}/tasks", {"split": "train"})["tasks"]
        last = {"split": "train", "index": len(listed) - 1}
        assert ask(url, f"/{env}/num_tasks", {"split": "train"})["num_tasks"] == len(listed) == len(tasks["train"])
        assert ask(url, f"/{env}/task", last)["task"] == listed[-1]
        for index in (-1, len(listed)):
            assert answers_of(url, f"/{env}/task", last | {"index": index}) == (400, "Invalid task index")
        for path in ("num_tasks", "tasks"):
            status, sentence = answers_of(url, f"/{env}/{path}", {"split": "trian"})
            assert status == 400 and sentence.startswith("no split `trian`; did you mean `train`")
    for script, answer in zip(scripts, answers["episodes"], strict=True):
        seen = [[text, reward or 0.0, done] for text, reward, done in answer["seen"]]
        assert json.dumps(seen) == json.dumps(script["seen"])
        assert sum(reward for _, reward, _ in seen) == pytest.approx(script["total"])
        task = tasks[script["split"]][script["index"]]
        assert answer["state"] == {
            "episode_id": f"{script['split']}/{script['index']}", "step_count": len(script["texts"]),
            "split": script["split"], "index": script["index"], "task_id": task.task_id,
            "total": script["total"], "version": coevolve.__version__,
        }  # fmt: skip
    refusal, first = answers["refused"]
    assert f"split `train` has the tasks 0 to {len(tasks['train']) - 1}, not 1000000." in refusal
    assert [split["name"] for split in splits] == list(tasks)
    with open_sessions(env) as pool:
        assert (metadata["name"], metadata["version"]) == (env, coevolve.__version__)
        assert metadata["description"] == pool.identity
        assert first == pool.acquire().reset("train", 0)


def test_bad_requests_and_a_held_session_are_answered_with_a_sentence(
    root, tmp_path, monkeypatch, upstream, other_environment
):
    lay_out(root, tmp_path, upstream)
    monkeypatch.chdir(tmp_path)
    python = other_environment("openenv", "bfcl")
    with serving(python, root, "webshop-small", "--sessions", "1", "--idle-seconds", "15") as url:
        turn = {"action": {"text": "Action: search[cup]"}}
        status, sentence = answers_of(url, "/step", turn)
        assert status == 400 and sentence.startswith("no episode is running; call reset first")
        for index in ("0", None, [0], {}, True, 1.0, -1, 10**30):
            status, sentence = answers_of(url, "/reset", {"index": index})
            assert status == 400 and "split `train` has the tasks 0 to" in sentence
        for split in ("trian", None, ["train"], 7, True):
            status, sentence = answers_of(url, "/reset", {"split": split, "index": 0})
            assert status == 400 and sentence.startswith("no split `")
        command, variables = (
            [python.path, root / "tests/adapters/openenv_held.py", url],
            {**os.environ, "PYTHONPATH": str(root)},
        )
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=variables, **pipes) as holder:
            assert "no episode is running" in holder.stdout.readline()
            assert holder.stdout.readline() == "held\n"
            busy = (503, "all 1 sessions are in use; try again later")
            with ThreadPoolExecutor(60) as threads:
                statuses = set(threads.map(lambda _: answers_of(url, "/reset", {}), range(60)))
            assert statuses == {busy}
            while answers_of(url, "/reset", {})[0] != 200:  # at last the test's time limit
                time.sleep(0.2)
            holder.stdin.write("step\n")
            holder.stdin.flush()
            assert "not used for a long time" in holder.stdout.read()
