"""Every environment for Gymnasium: its checker passes, and rewards are changes that sum to the episode's reward."""

import contextlib
import re

import gymnasium
import pytest
from adapters.played_sessions import expert_scripts, lay_out
from gymnasium.utils.env_checker import check_env

from coevolve.adapters import gymnasium_env
from coevolve.adapters.sessions import open_sessions
from coevolve.errors import UserError


@pytest.fixture(autouse=True)
def folder(root, tmp_path, monkeypatch, upstream):
    lay_out(root, tmp_path, upstream)
    monkeypatch.chdir(tmp_path)


def made(name="webshop-small"):
    return gymnasium.make(gymnasium_env.ID, env=name, disable_env_checker=True)


def test_an_episode_equals_direct_play():
    scripts, tasks = expert_scripts("webshop-small", 3)
    env = made()
    for script in scripts:
        observation, info = env.reset(options={"split": script["split"], "index": script["index"]})
        assert info["task_id"] == tasks[script["split"]][script["index"]].task_id
        seen = [[observation, 0.0, False]]
        for text in script["texts"]:
            observation, reward, done, truncated, info = env.step(text)
            seen.append([observation, reward, done or truncated])
        assert seen == script["seen"]
        assert sum(reward for _, reward, _ in seen) == pytest.approx(info["total"]) == pytest.approx(script["total"])
    assert max(script["total"] for script in scripts) > 0
    env.close()


def test_vectors_of_environments_give_the_texts_of_single_ones():
    turns = ["Action: search[red shoes]", "Action: search[\N{SNOWMAN} caf\u00e9]"]
    single, expected = made(), []
    for seed, turn in enumerate(turns, start=5):
        expected.append((single.reset(seed=seed)[0], *single.step(turn)[:4]))
    single.close()
    separate = gymnasium.vector.AsyncVectorEnv([made, made], shared_memory=False)
    for vector in (separate, gymnasium.vector.SyncVectorEnv([made, made])):
        first, _ = vector.reset(seed=5)
        results = [values.tolist() if hasattr(values, "tolist") else values for values in vector.step(turns)[:4]]
        vector.close()
        assert [*zip(first, *results, strict=True)] == expected
    with pytest.raises(ValueError, match="shared_memory=False"):
        gymnasium.vector.AsyncVectorEnv([made])


# The others start a JVM or a database server, or need BFCL's wheel.
@pytest.mark.parametrize(
    ("name", "turn"),
    [
        ("webshop-small", "Action: search[red shoes]"),
        pytest.param("bfcl", "Action: ls()", marks=pytest.mark.slow),
        pytest.param("sciworld-small", "Action: look around", marks=pytest.mark.slow),
        pytest.param("intercode_sql-small", "Action: SHOW TABLES", marks=pytest.mark.slow),
    ],
)
def test_gymnasiums_checker_passes(name, turn):
    env = made(name).unwrapped
    check_env(env, skip_render_check=True, skip_close_check=True)
    first, info = env.reset(seed=3)
    again, same = env.reset(seed=3)
    assert (first, info) == (again, same)
    result = env.step(turn)
    assert result[4]["action"] is not None and result[0]
    for _ in range(200):
        *_, done, truncated, info = env.step("no action")
        if done or truncated:
            break
    assert truncated or done
    env.close()


def test_the_code_of_the_page_runs(root):
    (code,) = re.findall(r"```python\n(.*?)```", (root / "docs/extend/other_trainers.md").read_text(), re.DOTALL)
    names = {}
    exec(code, names)
    assert names["observation"].startswith("Observation:") and names["reward"] == 0.0
    names["env"].close()


def test_a_wrong_split_or_index_is_one_sentence():
    with open_sessions("webshop-small") as pool:
        assert pool.size == 1
        session = pool.acquire()
        with pytest.raises(UserError, match="call `reset` first"):
            session.step("Action: x")
        with pytest.raises(UserError, match="did you mean `train`"):
            session.reset("trian", 0)
        with pytest.raises(UserError, match="tasks 0 to 29, not 30"):
            session.reset("test", 30)
    with contextlib.closing(made()) as env, pytest.raises(UserError, match="no split `trian`; did you mean `train`"):
        env.reset(options={"split": "trian"})
