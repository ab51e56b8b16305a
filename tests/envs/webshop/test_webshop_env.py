import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import pytest

from coevolve.envs.webshop.env import WebShop
from coevolve.envs.webshop.shop import Shop
from coevolve.errors import UserError

EPISODES = 24


@pytest.fixture(scope="module")
def folder(catalogue: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("env") / "shop"
    Shop.build(catalogue, built)
    return built


def twin(env: WebShop) -> WebShop:
    """Another environment over the same shop."""
    return WebShop(env.shop, env.goals, env.prices, env.tagger)


def episode(env: WebShop, goal: int) -> list[object]:
    """A random episode, the same for the same goal: everything the environment says."""
    rng = random.Random(goal)
    observation, clickables = env.reset(goal)
    said: list[object] = [observation, clickables]
    done = False
    for _ in range(20):
        strange = rng.choice(["search[<r>]", "search[no such thing]", "buy", f"search[{observation[-30:]}]"])
        action = strange if clickables == ["search"] or rng.random() < 0.2 else f"click[{rng.choice(clickables)}]"
        observation, reward, done, info = env.step(action)
        clickables = info["clickables"]
        said += [observation, reward, done, info]
        if done:
            break
    return said


def test_five_lines_of_use(folder: Path):
    env = WebShop.open(folder, seed=0)
    observation, clickables = env.reset(0)
    assert env.goals[0].instruction.strip() in observation
    assert clickables == env.clickables == ["search"]
    observation, reward, done, info = env.step(f"search[{env.goals[0].name}]")
    assert "Page 1 (Total results: 50)" in observation
    assert (reward, done, info["details"]) == (0.0, False, None)
    assert info["clickables"][:2] == ["back to search", "next >"]


def test_buying_what_is_asked_for_is_rewarded_in_full(folder: Path):
    env = WebShop.open(folder, seed=0)
    number, goal = next((n, g) for n, g in enumerate(env.goals) if g.name.strip() and not g.options)
    env.reset(number)
    info = env.step(f"search[{goal.name}]")[3]
    while goal.asin.lower() not in info["clickables"]:
        info = env.step("click[next >]")[3]
    env.step(f"click[{goal.asin}]")
    _, reward, done, info = env.step("click[buy now]")
    assert (reward, done) == (1.0, True)
    nouns = env.tagger.nouns(goal.name)
    assert info["details"] and info["details"]["title_score"] == len(set(nouns)) / len(nouns)  # a noun may recur


def test_an_episode_does_not_depend_on_those_before(folder: Path):
    env = WebShop.open(folder, seed=0)
    once = [episode(env, goal) for goal in range(EPISODES)]
    assert [episode(env, goal) for goal in reversed(range(EPISODES))] == once[::-1]
    assert [episode(WebShop.open(folder, seed=0), goal) for goal in (3, 1)] == [once[3], once[1]]


def test_the_seed_moves_price_limits(folder: Path):
    one, other = (WebShop.open(folder, seed=seed) for seed in (0, 1))
    assert [goal.asin for goal in one.goals] == [goal.asin for goal in other.goals]
    assert [goal.price_upper for goal in one.goals] != [goal.price_upper for goal in other.goals]


def test_threads_share_a_shop(folder: Path):
    env = WebShop.open(folder, seed=0)
    alone = [episode(env, goal) for goal in range(EPISODES)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda goal: episode(twin(env), goal), range(EPISODES)))
    assert together == alone


def test_synthetic_goals_are_chosen_on_opening(folder: Path):
    env = WebShop.open(folder, human=False)
    assert isinstance(env.goals[0].options, dict)
    assert env.tagger.id == "approximate"


def test_a_click_takes_no_time(folder: Path):
    env = WebShop.open(folder, seed=0)
    env.reset(0)
    env.step(f"search[{env.goals[0].name}]")
    taken = []
    for _ in range(100):
        for action in (f"click[{env.clickables[-1]}]", "click[description]", "click[< prev]", "click[< prev]"):
            start = time.perf_counter()
            env.step(action)
            taken.append(time.perf_counter() - start)
    assert median(taken) < 0.002


def test_use_without_an_episode_or_a_goal_is_refused(folder: Path):
    env = WebShop.open(folder)
    with pytest.raises(UserError, match="call `reset` first"):
        env.step("search[cup]")
    with pytest.raises(UserError, match=f"goals 0 to {len(env.goals) - 1}"):
        env.reset(len(env.goals))
