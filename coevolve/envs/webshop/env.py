"""WebShop as a stand-alone environment, independent of the kit's stages."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Self, TypedDict

from coevolve import seeds
from coevolve.envs.webshop.goals import Goal, draw_prices_and_goals
from coevolve.envs.webshop.session import ShopSession
from coevolve.envs.webshop.shop import Shop
from coevolve.envs.webshop.tagger import Tagger, TaggerName, load_tagger
from coevolve.errors import UserError


class StepInfo(TypedDict):
    """Clickable texts of the page, and after a purchase the parts of the reward under upstream's names."""

    clickables: list[str]
    details: dict[str, float | bool] | None


class WebShop:
    """WebShop's text environment::

        env = WebShop.open(folder, seed=0)
        observation, clickables = env.reset(0)
        observation, reward, done, info = env.step("search[red cup]")

    Shop, goals, prices and tagger are read-only: any number of environments, in any threads, can share them. Equal
    arguments give equal texts, regardless of earlier episodes. `ShopSession` documents the actions.
    """

    def __init__(
        self, shop: Shop, goals: Sequence[Goal], prices: Sequence[float], tagger: Tagger, seed: int = 0
    ) -> None:
        self.shop = shop
        self.goals = goals
        self.prices = prices
        self.tagger = tagger
        self._seed = seed
        self._session: ShopSession | None = None

    @classmethod
    def open(cls, folder: Path, seed: int = 0, human: bool = True, tagged_by: TaggerName = "approximate") -> Self:
        """An environment on the shop built in `folder`; prices and price limits are drawn from `seed` as by upstream.

        Goals are the human ones, or the synthetic ones. Raises `UserError` if the shop or the tagger is missing.
        """
        shop = Shop(folder)
        prices, goals = draw_prices_and_goals(shop, seed, human)
        return cls(shop, goals, prices, load_tagger(tagged_by), seed)

    def reset(self, goal: int) -> tuple[str, list[str]]:
        """Begin an episode for goal number `goal`; returns the page's text and its clickable texts."""
        if not 0 <= goal < len(self.goals):
            raise UserError(f"goal {goal}: this shop has goals 0 to {len(self.goals) - 1}.")
        rng = random.Random(seeds.derive(self._seed, "webshop", goal))
        self._session = ShopSession(self.shop, self.prices, self.tagger, self.goals[goal], rng)
        return self._session.page.text, self.clickables

    def step(self, action: str) -> tuple[str, float, bool, StepInfo]:
        """Apply an action; returns the page's text, the reward in [0, 1], whether a purchase was made, and details.

        The reward is 0 except after a purchase.
        """
        outcome = self._running_session().step(action)
        info = StepInfo(clickables=self.clickables, details=outcome.details)
        return outcome.page.text, outcome.reward, outcome.done, info

    @property
    def clickables(self) -> list[str]:
        """Texts of the current page that `click[...]` accepts, in the page's order."""
        return list(self._running_session().page.clickables)

    def _running_session(self) -> ShopSession:
        if self._session is None:
            raise UserError("no episode is running; call `reset` first.")
        return self._session
