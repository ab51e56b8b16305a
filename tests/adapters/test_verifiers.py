"""verifiers, in an environment of its own: it plays a scripted endpoint, with the rewards of direct play."""

import json
import os

import pytest
from adapters.played_sessions import ENVS, expert_scripts, lay_out
from policies.chatserver import KEY, MODEL, serving

import coevolve
from coevolve.policies.base import ScriptedPolicy

pytestmark = pytest.mark.slow
EPISODES = 2


def player(scripts):
    """An endpoint's policy that plays scripts; raises an error where an observation is not that of direct play."""
    beginnings = {script["seen"][0][0]: script for script in scripts}

    def next_text(conversation):
        shown = [message.content for message in conversation.prompt if message.role == "user"]
        script = beginnings[shown[0]]
        assert shown == [text for text, *_ in script["seen"][: len(shown)]]
        return script["texts"][len(shown) - 1]

    return ScriptedPolicy(next_text)


@pytest.mark.parametrize("env", ENVS)
def test_episodes_of_a_scripted_endpoint_have_the_texts_and_rewards_of_direct_play(
    env, root, tmp_path, monkeypatch, upstream, other_environment
):
    lay_out(root, tmp_path, upstream)
    monkeypatch.chdir(tmp_path)
    scripts, tasks = expert_scripts(env, EPISODES)
    python = other_environment("verifiers", "bfcl")
    settings = {
        "model": MODEL, "client.api-key-var": "KEY_OF_THE_TEST", "env.player.harness.id": "null",
        "env.player.runtime.type": "subprocess", "env.player.sampling.temperature": "0",
        "env.player.sampling.top-p": "1", "env.player.sampling.max-tokens": "64", "select.limit": str(EPISODES),
        "env.taskset.env": env, "env.taskset.split": "train", "env.taskset.sessions": str(EPISODES),
    }  # fmt: skip
    variables = {
        **os.environ, "KEY_OF_THE_TEST": KEY, "PYTHONPATH": f"{root}:{root / 'coevolve/adapters'}",
        "PATH": f"{python.path.parent}:{os.environ['PATH']}", "HOME": str(tmp_path),
    }  # fmt: skip
    with serving(player(scripts)) as server:
        flags = [
            word for name, value in {**settings, "client.base-url": server.url}.items() for word in (f"--{name}", value)
        ]
        command = [str(python.path.parent / "vf-eval"), "coevolve_taskset", "--no-push", "--no-rich", *flags]
        python(*command, env=variables)
        assert len(server.bodies) == sum(len(script["texts"]) for script in scripts[:EPISODES])
    (traces,) = tmp_path.glob("outputs/*/traces.jsonl")
    episodes = [json.loads(line) for line in traces.read_text().splitlines()]
    assert [episode["ok"] for episode in episodes] == [True] * EPISODES
    rewards = {e["task"]["data"]["index"]: e["traces"][0]["rewards"]["reward"]["score"] for e in episodes}
    assert rewards == {script["index"]: pytest.approx(script["total"]) for script in scripts[:EPISODES]}
    assert max(rewards.values()) > 0
    for episode in episodes:
        data = episode["task"]["data"]
        assert (data["env"], data["version"]) == (env, coevolve.__version__)
        assert data["name"] == tasks["train"][data["index"]].task_id
