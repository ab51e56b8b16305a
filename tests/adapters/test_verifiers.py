"""verifiers, in an environment of its own: it plays a scripted endpoint, with the rewards of direct play."""

import json
import os

import pytest
from adapters.played_sessions import shop_scripts
from policies.chatserver import KEY, MODEL, serving
from stages.test_in_context import PLAYER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_episodes_of_a_scripted_endpoint_have_the_rewards_of_direct_play(
    root, tmp_path, monkeypatch, other_environment
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(root / "configs")
    python = other_environment("verifiers")
    settings = {
        "model": MODEL, "client.api-key-var": "KEY_OF_THE_TEST", "env.player.harness.id": "null",
        "env.player.runtime.type": "subprocess", "env.player.sampling.temperature": "0",
        "env.player.sampling.top-p": "1", "env.player.sampling.max-tokens": "64", "select.limit": "2",
        "env.taskset.split": "test",
    }  # fmt: skip
    variables = {
        **os.environ, "KEY_OF_THE_TEST": KEY, "PYTHONPATH": f"{root}:{root / 'coevolve/adapters'}",
        "PATH": f"{python.path.parent}:{os.environ['PATH']}", "HOME": str(tmp_path),
    }  # fmt: skip
    with serving(PLAYER) as server:
        flags = [
            word for name, value in {**settings, "client.base-url": server.url}.items() for word in (f"--{name}", value)
        ]
        command = [str(python.path.parent / "vf-eval"), "coevolve_taskset", "--no-push", "--no-rich", *flags]
        python(*command, env=variables)
    (traces,) = tmp_path.glob("outputs/*/traces.jsonl")
    episodes = [json.loads(line) for line in traces.read_text().splitlines()]
    assert [episode["ok"] for episode in episodes] == [True, True]
    rewards = {e["task"]["data"]["index"]: e["traces"][0]["rewards"]["reward"]["score"] for e in episodes}
    scripts, _ = shop_scripts(2, places=[("test", 0), ("test", 1)])
    assert rewards == {script["index"]: pytest.approx(script["total"]) for script in scripts}
    assert max(rewards.values()) > 0
