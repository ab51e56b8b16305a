"""One shopper's episode: which page follows which action, and the reward on buying."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from coevolve.envs.webshop import pages
from coevolve.envs.webshop.analysis import terms
from coevolve.envs.webshop.goals import Goal
from coevolve.envs.webshop.pages import BACK, BUY, NEXT, PREVIOUS, SUB_PAGES, WINDOW, Page
from coevolve.envs.webshop.reward import reward
from coevolve.envs.webshop.shop import HITS, Shop
from coevolve.envs.webshop.tagger import Tagger

#: Lucene refuses a search for more terms than these.
TERMS = 1024
#: An action: a word, and its argument in the last pair of brackets; both on the action's first line.
_ACTION = re.compile(r"(.+)\[(.+)\]")
#: Upstream asks of the page's address what the page is, and takes the first of these that stands anywhere in it:
#: a search for "item_page" is therefore seen as one.
_ADDRESSES = ("search_results", "item_page", "item_sub_page")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an action led to. `reward` is 0 except on buying, where `details` holds its parts."""

    page: Page
    reward: float = 0.0
    done: bool = False
    details: dict[str, float | bool] | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the shopper stands: the last search, and the product looked at with the values chosen by option name."""

    page: Page
    keywords: tuple[str, ...] = ()
    found: Sequence[int] = ()
    number: int = 1
    product: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)


class _RefusedError(Exception):
    """Upstream's server would fail on this action."""


class Session:
    """An episode of upstream's text mode; one per shopper, any number over one shop.

    Actions are `search[words]`, on any page, and `click[text]` for a text that can be clicked; any other text changes
    nothing. As upstream, a session goes on after the purchase: nothing can be clicked, but one can search.

    On a few actions upstream's server fails. Here those change nothing either, same page and reward 0:

    * the search prefix `<c>` without a category, and `<r>` in a shop of fewer than 50 products;
    * a search for more than 1,024 different terms, or with a lone surrogate in it or in the id of a product it finds;
    * a click on a product whose id is not what raising the case of its lower-case form gives, or is the name of a
      button of a product's page;
    * buying where the title of the product or of the goal holds a lone surrogate.

    The prefix `<a>`, on which upstream's text mode fails too, searches as upstream's website does.
    """

    def __init__(
        self,
        shop: Shop,
        prices: Sequence[float],
        tagger: Tagger,
        goal: Goal,
        rng: random.Random,
        show_attributes: bool = False,
    ) -> None:
        self._shop = shop
        self._prices = prices
        self._tagger = tagger
        self._goal = goal
        self._rng = rng
        self._show_attributes = show_attributes
        self._place = _Place(pages.start(goal.instruction))

    @property
    def page(self) -> Page:
        """What the shopper sees."""
        return self._place.page

    def step(self, action: str) -> Outcome:
        """Do `action` and see what follows."""
        found = _ACTION.match(action)
        word, argument = (found[1], found[2].lower()) if found else (action, None)
        try:
            if argument is not None and word == "search":
                keywords = tuple(argument.split(" "))
                self._place = self._results(keywords, self._found(keywords), 1)
            elif argument is not None and word == "click" and argument in self.page.clickables and argument != "search":
                return self._click(argument)
        except _RefusedError:
            pass
        return Outcome(self.page)

    def _click(self, text: str) -> Outcome:
        """Follow `text`: a button's name comes first, whatever bears it."""
        if text == BUY:
            return self._buy()
        self._place = self._followed(text)
        return Outcome(self.page)

    def _followed(self, text: str) -> _Place:
        place, address = self._place, self._address()
        if text == BACK:
            return _Place(pages.start(self._goal.instruction))
        if text == NEXT and address == "search_results":
            return self._again(place.number + 1)
        if text == PREVIOUS and address == "search_results":
            return self._again(place.number - 1)
        if text == PREVIOUS and address == "item_page":
            return self._again(place.number)
        if text in SUB_PAGES:
            product = self._shop.product(_looked_at(place))
            return replace(place, page=pages.sub_page(self._goal.instruction, product, text))
        return self._item(text)

    def _item(self, text: str) -> _Place:
        """The page of the product that `text` links to, or of the one looked at, with the option `text` chosen."""
        place = self._place
        group = place.page.clickables[text]
        if place.page.kind == "results":
            place = replace(place, product=self._shop.number(text.upper()))
        elif group is not None:
            place = replace(place, options={**place.options, group: text})
        product = self._shop.product(_looked_at(place))
        return replace(place, page=pages.item(self._goal.instruction, product, self._show_attributes))

    def _again(self, number: int) -> _Place:
        """Another page of the last search, which upstream does anew: random products are others each time."""
        keywords, found = self._place.keywords, self._place.found
        return self._results(keywords, self._found(keywords) if keywords[0] == "<r>" else found, number)

    def _found(self, keywords: tuple[str, ...]) -> Sequence[int]:
        text = " ".join(keywords)
        no_category, too_few = keywords == ("<c>",), keywords[0] == "<r>" and len(self._shop) < HITS
        # Only a long text can hold too many terms, and analysing one costs as much as a search.
        too_many = len(text) > TERMS and len(set(terms(text))) > TERMS
        if no_category or too_few or too_many or not _encodable(text):
            raise _RefusedError
        return self._shop.search(keywords, self._rng)

    def _results(self, keywords: tuple[str, ...], found: Sequence[int], number: int) -> _Place:
        shown = [self._shop.product(i) for i in found[(number - 1) * WINDOW : number * WINDOW]]
        if not all(_encodable(product.asin) for product in shown):
            raise _RefusedError
        page = pages.results(self._goal.instruction, shown, number, len(found))
        return _Place(page, keywords, found, number)

    def _buy(self) -> Outcome:
        number, options = _looked_at(self._place), self._place.options
        product = self._shop.product(number)
        if not (_encodable(product.title) and _encodable(self._goal.name)):
            raise _RefusedError
        gained, details = reward(product, self._goal, self._prices[number], options.values(), self._tagger)
        self._place = _Place(pages.done(product.asin, options, gained))
        return Outcome(self.page, gained, True, details)

    def _address(self) -> str:
        """What upstream takes the page's kind to be."""
        place = self._place
        kind = {"results": "search_results", "item": "item_page", "sub_page": "item_sub_page"}.get(place.page.kind, "")
        address = f"{kind} {'+'.join(place.keywords)} {json.dumps(dict(place.options))}"
        return next((name for name in _ADDRESSES if name in address), "")


def _looked_at(place: _Place) -> int:
    """The product's number; refused where there is none, as on a page of results."""
    if place.product is None:
        raise _RefusedError
    return place.product


def _encodable(text: str) -> bool:
    """Whether a text can stand in an address: a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
