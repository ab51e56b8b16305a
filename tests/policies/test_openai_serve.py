"""Episodes through `transformers serve`, a server that is not ours, are those played here."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from policies.played import ENDPOINT, Local, play
from stages import corridor

from coevolve.pipeline.stages import sft
from coevolve.policies.openai import OpenAIPolicy, Usage
from coevolve.storage import jsonl
from coevolve.train.settings import SftConfig

pytest.importorskip("fastapi", reason="`transformers serve` needs fastapi and uvicorn")
pytest.importorskip("uvicorn", reason="`transformers serve` needs fastapi and uvicorn")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """A tiny policy that has learned to open doors."""
    base = tmp_path_factory.mktemp("served")
    jsonl.write(base / "experts.jsonl", corridor.experts(base))
    long = SftConfig(learning_rate=1e-2, **{**corridor.OPTIMISER, "epochs": 60})
    sections = corridor.suite(sft=long)
    inputs = {"experts": base / "experts.jsonl", "start": corridor.policy(base / "start")}
    (base / "policy").mkdir()
    sft.run(corridor.job("sft", base / "job", sections, **inputs), base / "policy")
    return base / "policy"


@contextlib.contextmanager
def served(policy, log):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = "from transformers.cli.transformers import main; main()"
    command = [sys.executable, "-c", start, "serve", str(policy)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"],
            env=environment,
            stdout=output,
            stderr=output,
        )
    try:
        for _ in range(120):
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
                break
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait()


def test_episodes_are_those_played_here(policy, tmp_path, monkeypatch):
    with served(policy, tmp_path / "log") as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "any-word")
        usage = jsonl.Journal(tmp_path / "usage.jsonl", Usage)
        served_policy = OpenAIPolicy(
            ENDPOINT.model_copy(update={"model": str(policy), "timeout_seconds": 60.0}),
            context=corridor.CONTEXT,
            journal=usage,
        )
        remote = play(served_policy, tmp_path / "remote.jsonl", max_new_tokens=30)
        usage.close()
    local = Local.load(policy, slots=4, context=corridor.CONTEXT, long_prompt="end")
    assert remote == play(local, tmp_path / "local.jsonl", max_new_tokens=30)
    assert sum(episode.reward for episode in remote) > 3
    ids = [local._renderer.conversation_ids(e.prompt, e.turns[:turn]) for e in remote for turn in range(len(e.turns))]
    assert sorted(response.prompt_tokens for response in usage.records) == sorted(len(prompt) for prompt in ids)
