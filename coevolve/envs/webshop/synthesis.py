"""Tasks from explored pages; see `coevolve.envs.synthesis.TaskSynthesis`.

A product that was reached becomes a goal with the chosen options and a price limit; the path of clicks to it is the
reference solution.
"""

import functools
import json
import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from coevolve.chat.prompts import write_action
from coevolve.envs.base import Setup
from coevolve.envs.synthesis import TaskDraft
from coevolve.envs.webshop import goals, prepared_shop, scripted_expert
from coevolve.envs.webshop.catalogue import Product
from coevolve.envs.webshop.goals import SyntheticGoal
from coevolve.envs.webshop.pages import BACK, BUY, NEXT, PREVIOUS, SEPARATOR, SUB_PAGES, TABS
from coevolve.envs.webshop.session import split_action
from coevolve.envs.webshop.shop import Shop
from coevolve.records.episodes import Task, Turn

#: The share of draws that go on to the next page, and the number of title words in a search.
NEXT_PAGE, SEARCH_WORDS = 0.1, 4
_BUTTONS = (BACK, PREVIOUS, NEXT, BUY, *SUB_PAGES)
_RESULTS = re.compile(r"Page \d+ \(Total results")
_PRODUCT_ID = re.compile(r"(?=.*\d)[a-z0-9]{10}")


def open_task(start: Task, name: str, instruction: str) -> Task:
    """The start page of a goal's shop with another instruction."""
    return _task(start, name, {"request": instruction})


def goal_task(setup: Setup, start: Task, name: str, draft: TaskDraft) -> Task:
    """The purchase at the end of the reference solution; its path leads to a product, as `describe` has found."""
    visit = _Visit(setup, draft.solution)
    assert visit.product is not None, "a draft of this module reaches a product"
    limit = goals.price_limit(visit.price)
    goal = SyntheticGoal(asin=visit.product.asin, options=visit.options, price_upper=limit)
    return _task(start, name, {"request": draft.instruction, "purchase": goal.to_json(), "solution": draft.solution})


def propose(setup: Setup, task: Task, turns: Sequence[Turn], favoured: Sequence[str], rng: np.random.Generator) -> str:
    """A search for words of a title on the start page, a listed product on a results page, an option on its page.

    Of a product without options it is a sub-page, and the way back.
    """
    shop, _ = _priced_shop(setup)
    page = turns[-1].observation if turns else ""
    listed = scripted_expert.listed_products(page)
    if listed and _RESULTS.search(page):
        if rng.random() < NEXT_PAGE:
            return f"click[{NEXT}]"
        return f"click[{listed[rng.integers(len(listed))].asin}]"
    visit = _Visit(setup, executed(setup, turns))
    if visit.product is not None:
        options = [value for value in visit.values if value not in _BUTTONS]
        texts = [PREVIOUS] if visit.tab else options or TABS
        return f"click[{texts[rng.integers(len(texts))]}]"
    title = shop.product(int(rng.integers(len(shop)))).title
    return f"search[{' '.join(title.lower().split()[:SEARCH_WORDS])}]"


def write(setup: Setup, task: Task, action: str) -> str:
    """A message with the action."""
    return write_action(action)


def executed(setup: Setup, turns: Sequence[Turn]) -> tuple[str, ...]:
    """Searches, and clicks that have an effect, without the purchase."""
    visit, before = _Visit(setup), ""
    actions = list[str]()
    for turn in turns:
        name, argument = split_action(turn.action or "")
        if argument is not None and (name == "search" or (name == "click" and argument in visit.clickable(before))):
            if argument == BUY:
                break
            actions.append(f"{name}[{argument}]")
            visit.follow(actions[-1])
        before = turn.observation
    return tuple(actions)


def pattern(action: str) -> str:
    """`search`, a button, `click[product]` or `click[option]`."""
    name, argument = split_action(action)
    if argument is None or name == "search":
        return name
    kind = "product" if _PRODUCT_ID.fullmatch(argument) else "option"
    return f"{name}[{argument if argument in _BUTTONS else kind}]"


def normalised(setup: Setup, start: Task, action: str) -> str:
    """The action in lower case with single spaces."""
    return " ".join(action.lower().split())


def describe(setup: Setup, start: Task, actions: Sequence[str]) -> TaskDraft | None:
    """A request for the product with its options and price limit, and the path to it.

    None without a product, or for one without attributes, whose purchase has no reward.
    """
    visit = _Visit(setup, actions)
    if visit.product is None or not goals.requested_attributes(visit.product):
        return None
    wanted = visit.product.synthetic.text if visit.product.synthetic else f"i want {visit.product.title.lower()}"
    options = ", and ".join(f"{name}: {value}" for name, value in visit.options.items())
    limit = goals.price_limit_text(goals.price_limit(visit.price))
    return TaskDraft(f"{wanted}{' with ' if options else ''}{options}{limit}", tuple(visit.path))


def solution_texts(setup: Setup, task: Task) -> list[str]:
    """The path, and the purchase."""
    return [write_action(action) for action in (*json.loads(str(task.data["solution"])), f"click[{BUY}]")]


def reference_solution(task: Task) -> Sequence[str]:
    """The path of a task made by `goal_task`; none of a goal of the shop, which any path fulfils."""
    return [*json.loads(str(task.data.get("solution", "[]")))]


def _task(start: Task, name: str, data: dict[str, object]) -> Task:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in data.items()}
    return start.model_copy(update={"task_id": name, "data": {"goal": start.data["goal"], **texts}})


def _priced_shop(setup: Setup) -> tuple[Shop, Sequence[float]]:
    return _opened(prepared_shop.prepared_folder(setup) / prepared_shop.SHOP, setup.config.seed)


@functools.lru_cache(maxsize=4)
def _opened(folder: Path, seed: int) -> tuple[Shop, Sequence[float]]:
    shop = Shop(folder)
    return shop, shop.prices(random.Random(seed))


class _Visit:
    """Where a path of executed actions leads: the product, its chosen options and its price in dollars.

    `path` is the part of the actions that leads there; `tab`: a sub-page of the product is shown.
    """

    def __init__(self, setup: Setup, actions: Iterable[str] = ()) -> None:
        self._shop, self._prices = _priced_shop(setup)
        self.path: list[str] = []
        self.product: Product | None = None
        self.options: dict[str, str] = {}
        self.price = 0.0
        self.tab = False
        for action in actions:
            self.follow(action)

    @property
    def values(self) -> list[str]:
        """The values of all options of the product, in its page's order; none without a product."""
        return [value for values in self.product.options.values() for value in values] if self.product else []

    def clickable(self, page: str) -> set[str]:
        """The texts on which a click has an effect, in lower case: buttons, listed products, values of options.

        Those of a product's pages are known, though an observation may be cut; of other pages, those that `page` shows.
        """
        if self.product is not None:
            return {BACK, PREVIOUS} if self.tab else {BACK, PREVIOUS, BUY, *TABS, *self.values}
        _, back, rest = page.partition("Back to Search")
        pieces = [piece.strip().lower() for piece in (back, *rest.split(SEPARATOR))]
        return {each for each in pieces if each in _BUTTONS or self._shop.number(each.upper()) is not None}

    def follow(self, action: str) -> None:
        """Goes on with an action."""
        name, argument = split_action(action)
        if name == "search" or argument == BACK:
            self.path, self.product, self.options = ([action] if name == "search" else []), None, {}
            self.tab = False
        elif argument is None:
            return
        elif self.tab:
            self.tab = argument != PREVIOUS
        elif self.product is None:
            number = self._shop.number(argument.upper())
            if number is not None:
                self.product, self.price = self._shop.product(number), self._prices[number]
            if number is not None or argument in (NEXT, PREVIOUS):
                self.path.append(action)
        elif argument == PREVIOUS:
            del self.path[-1 - len(self.options) :]
            self.product, self.options = None, {}
        elif argument in SUB_PAGES:
            self.tab = True
        else:
            group = next((name for name, values in self.product.options.items() if argument in values), None)
            if group is not None and group not in self.options:
                self.options[group] = argument
                self.path.append(action)
