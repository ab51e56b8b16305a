"""An episode in the shop: the page after each action, and the reward of the purchase."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from coevolve.chat.prompts import without_surrogates
from coevolve.envs.webshop import pages
from coevolve.envs.webshop.goals import Goal
from coevolve.envs.webshop.lucene_analyzer import index_terms
from coevolve.envs.webshop.pages import BACK, BUY, NEXT, PREVIOUS, RESULTS_PER_PAGE, SUB_PAGES, Page
from coevolve.envs.webshop.reward import reward
from coevolve.envs.webshop.shop import MAX_HITS, Shop
from coevolve.envs.webshop.tagger import Tagger

#: Lucene refuses a query with more different terms.
MAX_TERMS = 1024
#: Upstream determines the kind of a page by searching its URL for these, in this order. The URL contains the keywords,
#: so that results of a search for "item_page" are treated as an item page.
_URL_PAGE_KINDS = {"results": "search_results", "item": "item_page", "sub_page": "item_sub_page"}


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Result of an action. `reward` is 0 except after a purchase, where `details` holds its parts."""

    page: Page
    reward: float = 0.0
    done: bool = False
    details: dict[str, float | bool] | None = None


@dataclass(frozen=True, slots=True)
class _State:
    """State of an episode: page, last search, and viewed product with the selected values by option name."""

    page: Page
    keywords: tuple[str, ...] = ()
    results: Sequence[int] = ()
    page_number: int = 1
    product: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)


class _RefusedError(Exception):
    """Upstream's server fails on this action."""


class ShopSession:
    """An episode of upstream's text mode; any number of sessions share one shop.

    Actions are `search[words]`, on any page, and `click[text]` for a clickable text; any other text has no effect. A
    session continues after the purchase, as upstream: searches work, but the page has no clickable texts.

    Upstream's server fails on a few actions. Here these have no effect: the page stays, and the reward is 0:

    * the search prefix `<c>` without a category, and `<r>` in a shop of fewer than 50 products;
    * a search for more than 1,024 different terms, or with a lone surrogate in it or in the id of a listed product;
    * a click on a product whose id differs from the upper-case form of its lower-case form, or equals the name of a
      button on a product's page;
    * a purchase if the title of the product or of the goal contains a lone surrogate.

    The prefix `<a>`, on which upstream's text mode also fails, searches like upstream's website.
    """

    def __init__(self, shop: Shop, prices: Sequence[float], tagger: Tagger, goal: Goal, rng: random.Random) -> None:
        self._shop = shop
        self._prices = prices
        self._tagger = tagger
        self._goal = goal
        self._rng = rng
        self._state = _State(pages.start_page(goal.instruction))

    @property
    def page(self) -> Page:
        """The current page."""
        return self._state.page

    def step(self, action: str) -> StepOutcome:
        """Apply `action` and return the next page with the reward."""
        name, argument = split_action(action)
        try:
            if argument is not None and name == "search":
                keywords = tuple(argument.split(" "))
                self._state = self._results_state(keywords, self._search(keywords), 1)
            elif argument is not None and name == "click" and argument in self.page.clickables and argument != "search":
                if argument == BUY:
                    return self._buy()
                self._state = self._state_after_click(argument)
        except _RefusedError:
            pass
        return StepOutcome(self.page)

    def _state_after_click(self, text: str) -> _State:
        """The state after a click on `text`; an option or product with the name of a button acts as the button."""
        state, page_kind = self._state, self._page_kind_of_url()
        if text == BACK:
            return _State(pages.start_page(self._goal.instruction))
        if text == NEXT and page_kind == "search_results":
            return self._turn_to_page(state.page_number + 1)
        if text == PREVIOUS and page_kind == "search_results":
            return self._turn_to_page(state.page_number - 1)
        if text == PREVIOUS and page_kind == "item_page":
            return self._turn_to_page(state.page_number)
        if text in SUB_PAGES:
            product = self._shop.product(_viewed_product(state))
            return replace(state, page=pages.sub_page(self._goal.instruction, product, text))
        return self._item_state(text)

    def _item_state(self, text: str) -> _State:
        """The state on the page of the product linked by `text`, or of the viewed product with option `text`."""
        state = self._state
        group = state.page.clickables[text]
        if state.page.kind == "results":
            state = replace(state, product=self._shop.number(text.upper()))
        elif group is not None:
            state = replace(state, options={**state.options, group: text})
        product = self._shop.product(_viewed_product(state))
        return replace(state, page=pages.item_page(self._goal.instruction, product))

    def _turn_to_page(self, page_number: int) -> _State:
        """Another page of the last search, which upstream repeats: random products are drawn again each time."""
        keywords, results = self._state.keywords, self._state.results
        return self._results_state(keywords, self._search(keywords) if keywords[0] == "<r>" else results, page_number)

    def _search(self, keywords: tuple[str, ...]) -> Sequence[int]:
        text = " ".join(keywords)
        no_category, too_few = keywords == ("<c>",), keywords[0] == "<r>" and len(self._shop) < MAX_HITS
        # Analysing a text costs as much as a search, and only a long text can have too many terms.
        too_many = len(text) > MAX_TERMS and len(set(index_terms(text))) > MAX_TERMS
        if no_category or too_few or too_many or not _encodable(text):
            raise _RefusedError
        return self._shop.search(keywords, self._rng)

    def _results_state(self, keywords: tuple[str, ...], results: Sequence[int], page_number: int) -> _State:
        shown = [self._shop.product(number) for number in page_of(results, page_number)]
        if not all(_encodable(product.asin) for product in shown):
            raise _RefusedError
        page = pages.results_page(self._goal.instruction, shown, page_number, len(results))
        return _State(page, keywords, results, page_number)

    def _buy(self) -> StepOutcome:
        number, options = _viewed_product(self._state), self._state.options
        product = self._shop.product(number)
        if not (_encodable(product.title) and _encodable(self._goal.name)):
            raise _RefusedError
        earned, details = reward(product, self._goal, self._prices[number], options.values(), self._tagger)
        self._state = _State(pages.done_page(product.asin, options, earned))
        return StepOutcome(self.page, earned, True, details)

    def _page_kind_of_url(self) -> str:
        """The kind of page that upstream reads from the URL; see `_URL_PAGE_KINDS`."""
        state = self._state
        kind = _URL_PAGE_KINDS.get(state.page.kind, "")
        url = f"{kind} {'+'.join(state.keywords)} {json.dumps(dict(state.options))}"
        return next((name for name in _URL_PAGE_KINDS.values() if name in url), "")


def split_action(text: str) -> tuple[str, str | None]:
    r"""The name of an action and its argument in lower case; the text and None if it is no action.

    The groups of upstream's pattern `(.+)\[(.+)\]`, which takes quadratic time, on the first line of the text.
    """
    line = text.split("\n", maxsplit=1)[0]
    end = line.rfind("]")
    start = line.rfind("[", 1, max(end - 1, 0))
    return (text, None) if start < 0 else (line[:start], line[start + 1 : end].lower())


def _viewed_product(state: _State) -> int:
    if state.product is None:
        raise _RefusedError
    return state.product


def page_of(results: Sequence[int], page_number: int) -> Sequence[int]:
    """The results on one page, counted from 1."""
    return results[(page_number - 1) * RESULTS_PER_PAGE : page_number * RESULTS_PER_PAGE]


def _encodable(text: str) -> bool:
    """Whether a URL can contain `text`: it cannot contain a lone surrogate."""
    return text == without_surrogates(text)
