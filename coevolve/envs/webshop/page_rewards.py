"""IPR's reward of a page: the reward that a purchase from that page could earn (quirk 8).

IPR's copy of upstream's environment returns it after every step, so that an episode at the step limit keeps the last
one.
"""

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from coevolve.envs.webshop.catalogue import Product
from coevolve.envs.webshop.goals import Goal
from coevolve.envs.webshop.reward import colour_of, matches, option_texts, reward
from coevolve.envs.webshop.session import ShopSession, StepOutcome, page_of
from coevolve.envs.webshop.tagger import Tagger


class PageRewardSession(ShopSession):
    """An episode in which every step before the purchase has the reward of its page.

    For a results page this is the largest `expected_reward` of its products; for a product's page the `best_reward`
    with the selected options; for any other page, and for an action without effect, 0. Price ranges count with their
    lower end. (IPR fails on a product that has an option group without values; here its reward is 0.)
    """

    def step(self, action: str) -> StepOutcome:
        """Apply `action` and return the next page with its reward."""
        before = self._state
        outcome = super().step(action)
        if outcome.done or self._state is before:
            return outcome
        return dataclasses.replace(outcome, reward=self._page_reward())

    def _page_reward(self) -> float:
        state = self._state
        if state.page.kind == "results":
            products = map(self._shop.product, page_of(state.results, state.page_number))
            return max((expected_reward(product, self._goal, self._tagger) for product in products), default=0.0)
        if state.page.kind == "item" and state.product is not None:
            product = self._shop.product(state.product)
            return best_reward(product, self._goal, self._tagger, state.options.values())
        return 0.0


def expected_reward(product: Product, goal: Goal, tagger: Tagger) -> float:
    """Mean reward over all choices of one value from each option group."""
    purchases = list(_purchases(product, goal, tagger, ()))
    return sum(earned * count for earned, count in purchases) / max(1, sum(count for _, count in purchases))


def best_reward(product: Product, goal: Goal, tagger: Tagger, chosen: Collection[str]) -> float:
    """Largest reward of a choice of one value from each option group that includes the values `chosen`."""
    return max((earned for earned, _ in _purchases(product, goal, tagger, chosen)), default=0.0)


def _purchases(product: Product, goal: Goal, tagger: Tagger, chosen: Collection[str]) -> Iterator[tuple[float, int]]:
    """Rewards of the purchases that include the values `chosen`, each with the number of choices that earn it."""
    groups = [_equivalent_values(values, goal, chosen) for values in product.options.values()]
    for choice in itertools.product(*groups):
        values, count = [value for value, _ in choice], math.prod(count for _, count in choice)
        if all(value in values for value in chosen):
            yield reward(product, goal, product.pricing[0], values, tagger)[0], count


def _equivalent_values(values: Iterable[str], goal: Goal, chosen: Collection[str]) -> list[tuple[str, int]]:
    """A representative of each class of values that match the same goal options, with the size of the class.

    A chosen value forms a class by itself. Classes keep the number of combinations small.
    """
    texts = option_texts(goal)
    classes: defaultdict[tuple[object, ...], list[str]] = defaultdict(list)
    for value in values:
        colour = str(colour_of(value))
        classes[value in chosen and value, *(matches(colour, text) for text in texts)].append(value)
    return [(members[0], len(members)) for members in classes.values()]
