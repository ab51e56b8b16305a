"""The Gymnasium environment: Gymnasium's own checker, an episode, and any text as action or page."""

from collections.abc import Iterator

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import coevolve.envs.webshop.gym as registered
from coevolve.envs.webshop.shop import Shop
from coevolve.errors import UserError

Env = gymnasium.Env[str, str]


@pytest.fixture(scope="module")
def env(shop: Shop) -> Iterator[Env]:
    made = gymnasium.make(registered.ID, folder=shop.folder, render_mode="ansi", max_episode_steps=5)
    yield made
    made.close()


def test_gymnasiums_checker_finds_nothing(env: Env) -> None:
    check_env(env.unwrapped)


def test_an_episode_is_that_of_the_plain_environment(env: Env, shop: Shop) -> None:
    page, info = env.reset(options={"goal": 3})
    plain = registered.WebShop.open(shop.folder)
    assert (page, info["clickables"]) == plain.reset(3)
    asin = plain.goals[3].asin
    for action in (f"search[{plain.goals[3].name}]", f"click[{asin}]", "click[buy now]"):
        page, reward, terminated, truncated, info = env.step(action)
        assert (page, reward, terminated) == plain.step(action)[:3]
        assert env.render() == page
    assert terminated and not truncated and reward > 0
    assert info["details"]["r_price"]


def test_a_time_limit_truncates(env: Env) -> None:
    env.reset(seed=1)
    endings = [env.step("think[hard]")[2:4] for _ in range(5)]
    assert endings == [(False, False)] * 4 + [(False, True)]


def test_seeds_choose_goals(env: Env) -> None:
    drawn = [env.reset(seed=seed)[1]["goal"] for seed in range(20)]
    assert len(set(drawn)) > 5
    assert drawn == [env.reset(seed=seed)[1]["goal"] for seed in range(20)]
    with pytest.raises(UserError, match="this shop has goals 0 to"):
        env.reset(options={"goal": 10**6})
