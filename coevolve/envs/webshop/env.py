"""The shop as an environment for people who want nothing else of this kit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Self, TypedDict

from coevolve import seeds
from coevolve.envs.webshop.goals import Goal, draw
from coevolve.envs.webshop.session import Session
from coevolve.envs.webshop.shop import Shop
from coevolve.envs.webshop.tagger import Name, Tagger, tagger
from coevolve.errors import UserError


class Info(TypedDict):
    """What can be clicked now, and after a purchase the parts of the reward under upstream's names."""

    clickables: list[str]
    details: dict[str, float | bool] | None


class WebShop:
    """WebShop's text environment::

        env = WebShop.open(folder, seed=0)
        observation, clickables = env.reset(0)
        observation, reward, done, info = env.step("search[red cup]")

    Shop, goals, prices and tagger are only read: any number of environments, in any threads, can share them. The same
    arguments give the same text whatever ran before. What actions do is told at `Session`.
    """

    def __init__(
        self,
        shop: Shop,
        goals: Sequence[Goal],
        prices: Sequence[float],
        tagger: Tagger,
        seed: int = 0,
        show_attributes: bool = False,
    ) -> None:
        self.shop = shop
        self.goals = goals
        self.prices = prices
        self.tagger = tagger
        self._seed = seed
        self._show_attributes = show_attributes
        self._session: Session | None = None

    @classmethod
    def open(cls, folder: Path, seed: int = 0, human: bool = True, tagged_by: Name = "approximate") -> Self:
        """An environment over the shop built in `folder`; `seed` draws prices and price limits as upstream draws them.

        Goals are the human ones, or else the synthetic ones. Raises `UserError` if there is no shop or no such tagger.
        """
        shop = Shop.open(folder)
        prices, found = draw(shop, seed, human)
        return cls(shop, found, prices, tagger(tagged_by), seed)

    def reset(self, goal: int) -> tuple[str, list[str]]:
        """Begin an episode for the goal of a number: what is seen, and what can be clicked."""
        if not 0 <= goal < len(self.goals):
            raise UserError(f"goal {goal}: this shop has goals 0 to {len(self.goals) - 1}.")
        rng = random.Random(seeds.derive(self._seed, "webshop", goal))
        self._session = Session(
            self.shop, self.prices, self.tagger, self.goals[goal], rng, show_attributes=self._show_attributes
        )
        return self._session.page.text, self.clickables

    def step(self, action: str) -> tuple[str, float, bool, Info]:
        """Do an action: what is seen then, the reward in [0, 1] (0 but on buying), and whether it was bought."""
        outcome = self._running().step(action)
        info = Info(clickables=self.clickables, details=outcome.details)
        return outcome.page.text, outcome.reward, outcome.done, info

    @property
    def clickables(self) -> list[str]:
        """The texts that `click[...]` can name now, in the page's order."""
        return list(self._running().page.clickables)

    def _running(self) -> Session:
        if self._session is None:
            raise UserError("no episode is running; call `reset` first.")
        return self._session
