import random
from concurrent.futures import ThreadPoolExecutor

from coevolve.envs.webshop.goals import draw_prices_and_goals
from coevolve.envs.webshop.session import ShopSession
from coevolve.envs.webshop.shop import Shop
from coevolve.envs.webshop.tagger import load_tagger

EPISODES = 24


def test_an_episode_depends_neither_on_those_before_nor_on_threads_that_share_its_shop(shop: Shop):
    prices, goals = draw_prices_and_goals(shop, random.Random(0), human=True)
    tagger = load_tagger("approximate")

    def random_episode(goal: int) -> list[object]:
        """The pages and rewards of a random episode, the same for the same goal."""
        rng = random.Random(goal)
        session = ShopSession(shop, prices, tagger, goals[goal], random.Random(goal))
        outcomes: list[object] = [session.page]
        for _ in range(20):
            clickables = list(session.page.clickables)
            strange = rng.choice(["search[<r>]", "search[no such thing]", "buy", f"search[{session.page.text[-30:]}]"])
            action = strange if clickables == ["search"] or rng.random() < 0.2 else f"click[{rng.choice(clickables)}]"
            outcome = session.step(action)
            outcomes.append(outcome)
            if outcome.done:
                break
        return outcomes

    once = [random_episode(goal) for goal in range(EPISODES)]
    assert [random_episode(goal) for goal in reversed(range(EPISODES))] == once[::-1]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(random_episode, range(EPISODES))) == once
