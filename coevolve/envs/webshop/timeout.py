"""What IPR pays for standing on a page: the reward that buying from there could bring (SPEC section 4, no. 8).

IPR's copy of upstream's environment pays it on every step, so an episode that runs out of steps keeps the last one's.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from coevolve.envs.webshop.catalogue import Product
from coevolve.envs.webshop.goals import Goal
from coevolve.envs.webshop.pages import WINDOW
from coevolve.envs.webshop.reward import colour_of, matches, reward
from coevolve.envs.webshop.session import Outcome, Session
from coevolve.envs.webshop.tagger import Tagger


class PaidSession(Session):
    """An episode whose rewards before the purchase are those of the page that an action led to.

    A page of results is worth the most that a product on it brings on average over all choices of options; a
    product's page what the best choice brings that includes those made; any other page, and an action that changes
    nothing, 0. A range costs its lower end here. (IPR fails at a product with an option group without values; here it
    is worth 0.)
    """

    def step(self, action: str) -> Outcome:
        """Do `action` and see what follows."""
        before = self._place
        outcome = super().step(action)
        if outcome.done or self._place is before:
            return outcome
        return dataclasses.replace(outcome, reward=self._worth())

    def _worth(self) -> float:
        place = self._place
        if place.page.kind == "results":
            shown = place.found[(place.number - 1) * WINDOW : place.number * WINDOW]
            return max(
                (expected(self._shop.product(number), self._goal, self._tagger) for number in shown), default=0.0
            )
        if place.page.kind == "item" and place.product is not None:
            return best(self._shop.product(place.product), self._goal, self._tagger, place.options.values())
        return 0.0


def expected(product: Product, goal: Goal, tagger: Tagger) -> float:
    """Mean reward over all choices of one value from each option group."""
    purchases = list(_purchases(product, goal, tagger, ()))
    return sum(gained * times for gained, times in purchases) / max(1, sum(times for _, times in purchases))


def best(product: Product, goal: Goal, tagger: Tagger, chosen: Collection[str]) -> float:
    """Largest reward of a choice of one value from each option group that includes the values `chosen`."""
    return max((gained for gained, _ in _purchases(product, goal, tagger, chosen)), default=0.0)


def _purchases(product: Product, goal: Goal, tagger: Tagger, chosen: Collection[str]) -> Iterator[tuple[float, int]]:
    """Rewards, and how many choices bring each."""
    groups = [_alike(values, goal, chosen) for values in product.options.values()]
    for choice in itertools.product(*groups):
        values, times = [value for value, _ in choice], math.prod(times for _, times in choice)
        if all(value in values for value in chosen):
            yield reward(product, goal, product.pricing[0], values, tagger)[0], times


def _alike(values: Iterable[str], goal: Goal, chosen: Collection[str]) -> list[tuple[str, int]]:
    """One of the values that match the same of the goal's options, and how many do; a chosen value is its own kind."""
    wanted = goal.options.items() if isinstance(goal.options, Mapping) else goal.options
    texts = [str(colour_of(option)) for option in wanted]
    kinds: defaultdict[tuple[object, ...], list[str]] = defaultdict(list)
    for value in values:
        own = str(colour_of(value))
        kinds[value in chosen and value, *(matches(own, text) for text in texts)].append(value)
    return [(alike[0], len(alike)) for alike in kinds.values()]
