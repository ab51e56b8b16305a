import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from coevolve.envs.webshop.env import WebShop
from coevolve.envs.webshop.shop import Shop
from coevolve.errors import UserError

EPISODES = 24


def random_episode(env: WebShop, goal: int) -> list[object]:
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


def test_an_episode_depends_neither_on_those_before_nor_on_threads_that_share_its_shop(shop: Shop):
    env = WebShop.open(shop.folder, seed=0)
    once = [random_episode(env, goal) for goal in range(EPISODES)]
    assert [random_episode(env, goal) for goal in reversed(range(EPISODES))] == once[::-1]
    assert [random_episode(WebShop.open(shop.folder, seed=0), goal) for goal in (3, 1)] == [once[3], once[1]]

    def in_a_twin(goal: int) -> list[object]:
        return random_episode(WebShop(env.shop, env.goals, env.prices, env.tagger), goal)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(in_a_twin, range(EPISODES))) == once


def test_goals_and_tagger_are_chosen_and_use_without_an_episode_or_a_goal_is_refused(shop: Shop):
    env = WebShop.open(shop.folder, human=False, tagged_by="approximate")
    assert isinstance(env.goals[0].options, dict) and env.tagger.id == "approximate"  # a synthetic goal
    with pytest.raises(UserError, match="call `reset` first"):
        env.step("search[cup]")
    with pytest.raises(UserError, match=f"goals 0 to {len(env.goals) - 1}"):
        env.reset(len(env.goals))
